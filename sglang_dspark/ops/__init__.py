"""One file an operation: a plain function, its checks, and the dispatch to the compiled extension if it is there."""
