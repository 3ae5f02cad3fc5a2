"""The hot path as extension modules (mypyc): which modules those are, how they are built, and how Python finds them."""
