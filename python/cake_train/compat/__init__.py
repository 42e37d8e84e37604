"""Entries under the names and signatures of other projects, so that a model switches by one import.

`cake_train.compat.fla_det` and `cake_train.compat.fla_nondet` hold `chunk_kda` with the arguments, layouts and results
of flash-linear-attention's function of that name. The module that is imported chooses the mode, as everywhere else;
the function's own name is the other project's and the one exemption from the naming rule.

Importing a module here loads neither torch nor a library: both wait for the first call.
"""
