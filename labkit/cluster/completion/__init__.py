"""Completion, signatures and help in `%%px` and `%px` cells: the names are those of the ranks.

- `cells`: which part of a notebook's cell the ranks run, and where the cursor stands in it
- `cursor`: what stands at the cursor: a name, an attribute, a call, an import, a text
- `things`: what can be known of a value; `objects`: of one that lives in this process, without running any
  code of its class; `definitions`: of a function, class or module whose text is here
- `scope`: the names that a cell sees, and the value of an expression as far as it can be known
- `answers`: the answer to a request, for either of the above
- `on_ranks`: answers on a rank, in a thread beside its cells
- `mirror`: what the notebook's kernel knows if no rank answers
- `service`: answers requests in the kernel: asks a rank, and after a deadline the mirror

No code of a cell is ever run for an answer: no property, no `__getattr__`, `__dir__`, `__repr__`, and no
function is called.
"""
