"""What `lexbench tune` is made of: space, halving, the bench where candidates are asked, ranking, page."""
