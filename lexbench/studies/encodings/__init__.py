"""Parts of `lexbench study`: what is asked, what follows from it, and the processes that do it."""
