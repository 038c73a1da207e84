"""Exchange results and tasks with other programs and the Hugging Face hub."""
