"""Models of the transformers library as blocks: ``heed export hf DIR``, with the weights of every layer.

``command`` is the command, ``pretrained`` reads the directory, ``wrapper`` makes the model a module with Heed's names
of outputs, ``inputs`` and ``description`` say what it takes and answers, ``verification`` compares each graph with the
original in float64, ``heads`` and ``head_masks`` apply a mask of heads, ``artifact`` writes the version.
"""
