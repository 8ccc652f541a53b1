//! The source of the kernels, which is one program to the compiler.

use crate::Dtype;

/// Files in the order of compilation; a file may use those before it.
const FILES: [(&str, &str); 9] = [
    ("common.cuh", include_str!("kernels/common.cuh")),
    ("norm.cu", include_str!("kernels/norm.cu")),
    ("pointwise.cu", include_str!("kernels/pointwise.cu")),
    ("rope.cu", include_str!("kernels/rope.cu")),
    ("tiles.cuh", include_str!("kernels/tiles.cuh")),
    ("attention.cu", include_str!("kernels/attention.cu")),
    (
        "attention_backward.cu",
        include_str!("kernels/attention_backward.cu"),
    ),
    ("head.cu", include_str!("kernels/head.cu")),
    ("adamw.cu", include_str!("kernels/adamw.cu")),
];

/// All files after `prelude`, each under its own name in the compiler's messages.
pub(crate) fn program(prelude: &str, dtype: Dtype) -> String {
    let operand = match dtype {
        Dtype::F32 => "float",
        Dtype::Bf16 => "bf16",
    };
    let mut text = format!("{prelude}#define OPERAND {operand}\n");
    for (name, source) in FILES {
        text.push_str(&format!("\n#line 1 \"{name}\"\n{source}"));
    }
    text
}

/// Names of the kernels in a text.
pub(crate) fn names_in(text: &str) -> impl Iterator<Item = &str> {
    let kernels = text.split("extern \"C\" __global__ void ").skip(1);
    kernels.filter_map(|kernel| kernel.split('(').next())
}
