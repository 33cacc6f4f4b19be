"""Models of the transformers library as blocks: ``heed export hf DIR``, with the weights of every layer.

``command`` is the command, ``pretrained`` reads the directory, ``wrapper`` makes the model a module with Heed's output
names, ``inputs`` and ``description`` describe its inputs and outputs, ``verification`` compares each graph with the
original in float64, ``heads`` and ``head_masks`` apply head masks, ``artifact`` writes the version.
"""
