"""What the calibrated algorithms need: texts, the model computed layer by layer, and what its linear layers get to see.

One decoder layer is in memory at a time. It is computed with its original weights to see the inputs of its linear
layers, quantised, and computed again, so that the next layer sees what the quantised ones before it make (Frantar et
al., arXiv 2210.17323, §4).
"""
