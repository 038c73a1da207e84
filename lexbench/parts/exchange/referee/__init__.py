"""The referee on files of samples: compare, check, certify and plan what other programs measured."""
