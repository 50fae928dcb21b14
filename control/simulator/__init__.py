"""An inference engine without a GPU, for tests and demonstrations.

Only the GPU is simulated: the KV cache, its overflow and the pace of tokens. Its HTTP is real.
"""
