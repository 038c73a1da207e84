"""Imports results of lm-evaluation-harness as cells of a run folder."""
