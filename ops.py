import sys, tempfile
sys.path.insert(0, "/tmp/t2")
import torch, smelt, chain
from collections import Counter
kind, n = sys.argv[1], int(sys.argv[2])
f = getattr(chain, kind)(n)
x = torch.randn(64, 64)
from smelt.codegen.llvm.lanes import lanes
from smelt.codegen.llvm import text
L, N = Counter(), Counter()
old = lanes.ExprEmitter.emit
depth = 0
def emit(self, op, dtype, args, operand=None):
    global depth
    a = len(self.fn.lines); depth += 1
    try: return old(self, op, dtype, args, operand)
    finally:
        depth -= 1
        if depth == 0: L[op] += len(self.fn.lines) - a; N[op] += 1
lanes.ExprEmitter.emit = emit
tot = 0
fin = text.FunctionText.finish
def finish(self, *a):
    global tot
    r = fin(self, *a); tot += r.count("\n"); return r
text.FunctionText.finish = finish
from smelt.codegen.llvm.nests import nest_ir
C = Counter()
made = nest_ir._made
def _made(graph, schedule, runs, isa):
    k = made(graph, schedule, runs, isa)
    lines = k.source.text.count("\n")
    key = ("reduce" if graph.reduces or graph.scans else "point", "lane inner" if schedule.lane is not None and schedule.lane >= len(graph.nest.outer) else "lane outer", schedule.copies, schedule.lanes, "tile" if schedule.tile is not None else "", "masked" if schedule.masked else "")
    C[key] += lines; C[("n", *key)] += 1
    return k
nest_ir._made = _made
with torch.no_grad():
    c = smelt.compile(f, options={"cache_dir": tempfile.mkdtemp()})
    c(x)
print("total", tot)
for k, v in L.most_common(25): print(f"{k:10} {v:6} lines in {N[k]} = {v/N[k]:.1f}")
for k, v in C.most_common(): print(k, v)
