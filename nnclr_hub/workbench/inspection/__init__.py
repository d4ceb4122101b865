"""`nnclr inspect`: a folder of images or a collection -> findings -> a report."""
