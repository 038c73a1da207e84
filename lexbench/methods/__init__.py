"""Plug-in methods for a trained model: one file, one yaml and one test of the same name each."""
