"""Renew the models of text recognition that Penstock ships: RapidOCR's own, smaller and faster.

`python deploy/smaller_models.py PDF …`, with the packages onnx and rapidocr. It changes three things:

- Weights below 1e-30 become zero. Training left 255,000 subnormal weights in the detector, and a processor takes a
  hundred times as long to multiply one: three quarters of a search went into two layers. The result is the same.
- Pairs of pointwise convolutions with a Gelu between them, and the last layer, which chooses among 18,710 signs,
  multiply 8-bit integers. ONNX Runtime chooses the range of their inputs for each picture.
- GPTQ rounds the weights of the recogniser: the weights not yet rounded make up for the error of each rounding,
  measured on lines of the given PDFs.
"""

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pypdfium2
import rapidocr
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from rapidocr.ch_ppocr_rec.main import TextRecognizer

Floats = NDArray[np.float32]

SOURCES = Path(rapidocr.__file__).parent / "models"
MODELS = Path(__file__).parent.parent / "pipeline" / "reading" / "ocr" / "models"
DETECTOR, RECOGNISER = "PP-OCRv6_det_small", "PP-OCRv6_rec_small"

GREATEST = 63
"""The greatest weight, of 7 bits: with 8, the sum of two products overflows on processors without VNNI."""
TINY = 1e-30
LEAST = 18_000
"""Convolutions with fewer weights gain less than the two transpositions around them cost."""
LINES, PAGES = 300, 4
"""The fewest lines that decide the rounding, if the PDFs have as many, and the pages that are read of each PDF."""
DAMPING = 0.01
"""Added to the variance of each channel, as a share of the mean variance: GPTQ's own."""
HEAD = 5_000
"""Only the matrix of the signs has more columns."""


class Quantiser:
    """Replaces the nodes of a model one by one. `lines`: pictures of lines, each 1 × 3 × 48 × width, that decide the
    rounding; without any, weights become the nearest integers."""

    def __init__(self, model: onnx.ModelProto, lines: list[Floats]) -> None:
        self.model = model
        self.lines = lines
        self.weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self.readers[name].append(node)
        self.quantised: list[onnx.TensorProto] = []
        self.products = self._products()

    def make(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []
        replaced: set[str] = set()
        for node in self.model.graph.node:
            if node.name in replaced:
                continue
            if (pair := self._pair(node)) is not None:
                first, *between, second = pair
                nodes += self._multiplied(first, second)
                replaced |= {each.name for each in (*between, second)}
            elif node.op_type == "MatMul" and self.weights.get(node.input[1], np.empty((0, 0))).shape[-1] > HEAD:
                (add,) = self.readers[node.output[0]]
                bias = next(name for name in add.input if name in self.weights)
                source = node.input[0]
                nodes.append(self._product("signs", source, self.weights[node.input[1]], bias, add.output[0], source))
                replaced.add(add.name)
            else:
                nodes.append(node)
        graph = self.model.graph
        used = {name for node in nodes for name in node.input}
        kept = [numpy_helper.from_array(_cleaned(a), name) for name, a in self.weights.items() if name in used]
        for field, items in ((graph.node, nodes), (graph.initializer, kept + self.quantised), (graph.value_info, [])):
            del field[:]
            field.extend(items)
        del self.model.opset_import[:]
        self.model.opset_import.extend([helper.make_opsetid("", 11), helper.make_opsetid("com.microsoft", 1)])
        return self.model

    def _pair(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return a pointwise convolution, the nodes of the Gelu after it, and the pointwise convolution after that."""
        if not self._is_pointwise(node) or self.weights[node.input[1]].size < LEAST:
            return None
        after = sorted(self.readers[node.output[0]], key=lambda each: each.op_type)
        if [each.op_type for each in after] != ["Div", "Mul"]:
            return None
        divided, product = after
        (erf,) = self.readers[divided.output[0]]
        (added,) = self.readers[erf.output[0]]
        (halved,) = self.readers[product.output[0]]
        (second,) = self.readers[halved.output[0]]
        if (erf.op_type, added.op_type, halved.op_type) != ("Erf", "Add", "Mul") or not self._is_pointwise(second):
            return None
        return [node, divided, erf, added, product, halved, second]

    def _is_pointwise(self, node: onnx.NodeProto) -> bool:
        return (
            node.op_type == "Conv"
            and self.weights[node.input[1]].shape[2:] == (1, 1)
            and all(each.i == 1 for each in node.attribute if each.name == "group")
        )

    def _multiplied(self, first: onnx.NodeProto, second: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return both convolutions as products of matrices whose rows are pixels and whose columns are channels."""
        name = first.name
        return [
            helper.make_node("Transpose", [first.input[0]], [f"{name}_pixels"], perm=[0, 2, 3, 1]),
            self._convolution(first, f"{name}_pixels", f"{name}_wide"),
            helper.make_node("Gelu", [f"{name}_wide"], [f"{name}_gelu"], domain="com.microsoft"),
            self._convolution(second, f"{name}_gelu", f"{name}_narrow"),
            helper.make_node("Transpose", [f"{name}_narrow"], [second.output[0]], perm=[0, 3, 1, 2]),
        ]

    def _convolution(self, node: onnx.NodeProto, given: str, result: str) -> onnx.NodeProto:
        weights = self.weights[node.input[1]][:, :, 0, 0].T
        return self._product(node.name, given, weights, node.input[2], result, node.input[0])

    def _product(self, name: str, given: str, weights: Floats, bias: str, result: str, source: str) -> onnx.NodeProto:
        scale = np.abs(weights).max(axis=0) / GREATEST
        scale[scale < TINY] = 1
        self.quantised += [
            numpy_helper.from_array(_rounded(weights, scale, self.products.get(source)), f"{name}_weights"),
            numpy_helper.from_array(scale.astype(np.float32), f"{name}_scale"),
        ]
        inputs = [given, f"{name}_weights", f"{name}_scale", "", bias]
        return helper.make_node("DynamicQuantizeMatMul", inputs, [result], name=name, domain="com.microsoft")

    def _products(self) -> dict[str, NDArray[np.float64]]:
        """Return, by the name of each large layer's input, the mean products of its channels with one another, channels
        × channels, summed over all lines."""
        if not self.lines:
            return {}
        layers = [node for node in self.model.graph.node if node.op_type in {"Conv", "MatMul"}]
        layers = [
            node for node in layers if node.input[1] in self.weights and self.weights[node.input[1]].size >= LEAST
        ]
        names = sorted({node.input[0] for node in layers})
        watched = onnx.ModelProto()
        watched.CopyFrom(self.model)
        for name in names:
            watched.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
        sums: dict[str, Any] = defaultdict(float)
        for line in self.lines:
            for name, values in zip(names, session.run(names, {"x": line}), strict=True):
                channels = values.transpose(0, 2, 3, 1) if values.ndim == 4 else values
                rows = channels.reshape(-1, channels.shape[-1]).astype(np.float64)
                sums[name] += rows.T @ rows / len(rows)
        return dict(sums)


def _rounded(weights: Floats, scale: Floats, products: NDArray[np.float64] | None) -> NDArray[np.int8]:
    """Return the weights, inputs × outputs, in steps of `scale`, one for each output."""
    if products is None:
        return np.rint(weights / scale).astype(np.int8)
    count = len(weights)
    order = np.argsort(-np.diag(products))  # the channels that matter most first
    damped = products[order][:, order] + DAMPING * np.trace(products) / count * np.eye(count)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    left = weights[order].astype(np.float64)
    steps = np.zeros_like(left)
    for row in range(count):
        steps[row] = np.clip(np.rint(left[row] / scale), -GREATEST, GREATEST)
        error = (left[row] - steps[row] * scale) / factor[row, row]
        left[row + 1 :] -= np.outer(factor[row, row + 1 :], error)
    result = np.zeros_like(steps, np.int8)
    result[order] = steps
    return result


def _cleaned(weights: NDArray[np.generic]) -> NDArray[np.generic]:
    tiny = weights.dtype == np.float32 and np.abs(weights) < TINY
    return np.where(tiny, np.zeros_like(weights), weights)


def folded(source: Path) -> onnx.ModelProto:
    """Return the model as ONNX Runtime simplifies it: constants computed, the bias inside of each convolution."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/model.onnx"
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def pictures_of_lines(documents: list[str]) -> list[Floats]:
    """Return lines of the documents' first pages, as the recogniser gets them, 1 × 3 × 48 × width."""
    seen: list[Floats] = []
    usual = TextRecognizer.resize_norm_img

    def watched(recogniser: TextRecognizer, image: NDArray[np.uint8], ratio: float) -> Floats:
        line: Floats = usual(recogniser, image, ratio)
        seen.append(line[None])
        return line

    engine = rapidocr.RapidOCR(params={"Global.use_cls": False, "Rec.rec_batch_num": 1})
    with patch.object(TextRecognizer, "resize_norm_img", watched):
        for path in documents:
            with pypdfium2.PdfDocument(path) as document:
                for number in range(min(PAGES, len(document))):
                    engine(document[number].render(scale=2).to_pil().convert("RGB"))
    return seen[:: max(1, len(seen) // LINES)]


if __name__ == "__main__":
    if not (lines := pictures_of_lines(sys.argv[1:])):
        sys.exit("Name PDFs with text: their lines decide how weights are rounded.")
    for name, shown in ((DETECTOR, []), (RECOGNISER, lines)):
        onnx.save(Quantiser(folded(SOURCES / f"{name}.onnx"), shown).make(), MODELS / f"{name}_int8.onnx")
