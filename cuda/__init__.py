"""The CUDA sources, installed as pdla.cuda: files("pdla.cuda") finds them."""
