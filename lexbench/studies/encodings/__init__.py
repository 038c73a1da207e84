"""Parts of `lexbench suite`: what is asked, what follows from it, and the processes that do it."""
