"""From a job to cells, and from cells to samples in the run folder."""
