"""What a method does to a model, as a table and as pictures."""
