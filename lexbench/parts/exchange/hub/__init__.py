"""Model cards and sample data sets for the Hugging Face hub."""
