"""Does tensor work of graph servers, and holds nothing: any number of them, at any time, gone at any moment."""
