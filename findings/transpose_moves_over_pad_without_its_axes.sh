#!/usr/bin/env bash
# onnxruntime 1.32.0 (CPU): a Pad that lists some axes (its fourth input, since opset 18) between two Transposes runs with
# optimizations off, and onnx's reference evaluator gives the same. With optimizations on, the default, the run raises
# INVALID_ARGUMENT in a Gather that the model does not have: the optimizer moves the Transpose over the Pad and permutes the pads as if
# there were some for every axis. The model passes onnx.checker; loading it gives no error. Pads for all axes run in both modes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy==2.3.5
cat > "$folder/try.py" <<'PYTHON'
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator


def model(pads, axes):
    weights, names = [numpy_helper.from_array(np.array(pads, np.int64), 'pads')], ['turned', 'pads']
    if axes:
        weights.append(numpy_helper.from_array(np.array(axes, np.int64), 'axes'))
        names += ['', 'axes']
    nodes = [
        helper.make_node('Transpose', ['x'], ['turned'], perm=[1, 0]),
        helper.make_node('Pad', names, ['padded']),
        helper.make_node('Transpose', ['padded'], ['y'], perm=[1, 0]),
    ]
    inputs = [helper.make_tensor_value_info('x', TensorProto.FLOAT, [2, 3])]
    outputs = [helper.make_tensor_value_info('y', TensorProto.FLOAT, ['a', 'b'])]
    graph = helper.make_graph(nodes, 'g', inputs, outputs, weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 20)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def run(made, level):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    session = ort.InferenceSession(made.SerializeToString(), options, providers=['CPUExecutionProvider'])
    try:
        return session.run(None, {'x': x})[0].shape
    except Exception as error:
        return type(error).__name__


x = np.arange(6, dtype=np.float32).reshape(2, 3)
levels = ort.GraphOptimizationLevel
print('onnxruntime', ort.__version__, 'onnx', onnx.__version__)
for pads, axes, on in (([0, 0, 0, 1], [], (3, 3)), ([0, 1], [1], 'InvalidArgument')):
    made = model(pads, axes)
    found = run(made, levels.ORT_DISABLE_ALL), run(made, levels.ORT_ENABLE_ALL)
    reference = ReferenceEvaluator(made).run(None, {'x': x})[0].shape
    print('pads', pads, 'axes', axes, 'off:', found[0], 'on:', found[1], 'reference:', reference)
    assert found == ((3, 3), on) and reference == (3, 3)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
