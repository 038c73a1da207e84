"""Tasks of the suites `ruler`, `standard` and `today`, and of single studies; each is a file of its name."""
