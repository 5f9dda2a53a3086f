"""The kernel that sets the values of conditional nodes, and whether a driver has such nodes.

    byte c of the GPU's memory      ==>      condition 0 := c != 0, condition 1 := c == 0

Only code of the device can set a condition, by a function that the driver adds when it loads a module. So the kernel is
PTX, which each driver compiles for its device. Whether it does is asked once, by making a graph with such nodes.
"""

from __future__ import annotations

from typing import Final

from smelt.diag import SmeltError
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.cuda.driver import CONDITIONS, Driver, dotted, unusable

NAME: Final = "smelt_set_conditions"

WHERE_TRUE: Final = 1
WHERE_FALSE: Final = 2
"""Which of its two conditions a launch sets; the second one is the opposite of the first."""


def _set(condition: str, value: str) -> str:
    """The lines that set a condition's value, both in registers."""
    return f"""\
    {{
        .param .b64 condition;
        .param .b32 value;
        st.param.b64 [condition], {condition};
        st.param.b32 [value], {value};
        call.uni cudaGraphSetConditional, (condition, value);
    }}"""


PTX: Final = f"""\
.version 7.0
.target sm_80
.address_size 64

.extern .func cudaGraphSetConditional
(
    .param .b64 condition,
    .param .b32 value
);

.visible .entry {NAME}
(
    .param .u64 test,
    .param .u64 where_true,
    .param .u64 where_false,
    .param .u32 which
)
{{
    .reg .pred %p<4>;
    .reg .b16 %h<2>;
    .reg .b32 %r<7>;
    .reg .b64 %d<5>;

    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra END;
    ld.param.u64 %d1, [test];
    cvta.to.global.u64 %d2, %d1;
    ld.global.u8 %h1, [%d2];
    setp.ne.u16 %p2, %h1, 0;
    selp.u32 %r2, 1, 0, %p2;
    selp.u32 %r3, 0, 1, %p2;
    ld.param.u32 %r4, [which];

    and.b32 %r5, %r4, {WHERE_TRUE};
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra SECOND;
    ld.param.u64 %d3, [where_true];
{_set("%d3", "%r2")}
SECOND:
    and.b32 %r6, %r4, {WHERE_FALSE};
    setp.eq.u32 %p3, %r6, 0;
    @%p3 bra END;
    ld.param.u64 %d4, [where_false];
{_set("%d4", "%r3")}
END:
    ret;
}}
"""

SETTER: Final = CudaCode(
    NAME, 80, (("test", "*i8"), ("where_true", "i64"), ("where_false", "i64"), ("which", "i32")), (1, 1, 1, 1), 1, 0,
    PTX.encode(),
)  # fmt: skip
"""The kernel as launches take it; its code is text, which the driver compiles."""


def why_none(driver: Driver) -> str:
    """Why a driver has no conditional nodes; empty where it has them."""
    if driver.version < CONDITIONS:
        return f"the driver is for CUDA {dotted(driver.version)}, and conditional nodes need {dotted(CONDITIONS)}"
    module = graph = executable = 0
    try:
        module = driver.load_module(SETTER.cubin)
        if not driver.function(module, NAME):
            raise unusable("the kernel that sets conditions is missing", "the driver loaded no such", "")
        graph = driver.graph()
        # A loop in a branch, as programs have them.
        _, body = driver.add_conditional(graph, (), driver.condition(graph), False)
        driver.add_conditional(body, (), driver.condition(body), True)
        executable = driver.instantiate(graph)
    except SmeltError as error:
        return f"the driver refuses them: {error.what}, {error.why}"
    finally:
        if executable:
            driver.destroy_executable(executable)
        if graph:
            driver.destroy_graph(graph)
        if module:
            driver.unload_module(module)
    return ""
