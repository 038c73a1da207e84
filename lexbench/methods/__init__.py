"""Plug-in methods for a trained model: one file, one yaml, one test and one name each."""
