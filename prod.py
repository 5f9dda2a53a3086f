import pickle, time
from smelt.codegen.llvm import emit
from smelt.codegen.llvm.isa import host_isa
isa = host_isa()
m = emit._new_target_machine(isa.cpu, isa.features)
t = pickle.load(open("/tmp/t2/texts_mixed_2000.pkl", "rb"))
P = [x for x in t if x.count("define ") > 1]; N = [x for x in t if x.count("define ") == 1]
def run(ts):
    s = time.thread_time()
    for x in ts: m.emit_object(emit._module(x))
    return time.thread_time() - s
for _ in range(2): print("products", run(P), "nests", run(N))
