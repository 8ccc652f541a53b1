//! The number formats of GGUF files, widened to f32. What a block stands for is computed in the order
//! of PyPI's `gguf`, so that every bit is the same. Formats and names are ggml's.

use half::f16;

/// A format of a tensor's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

use Kind::{Bf16, F16, F32, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// Number in the file, name, numbers of a block, and its bytes.
const KINDS: [(Kind, u32, &str, usize, usize); 13] = [
    (F32, 0, "F32", 1, 4),
    (F16, 1, "F16", 1, 2),
    (Bf16, 30, "BF16", 1, 2),
    (Q4_0, 2, "Q4_0", 32, 18),
    (Q4_1, 3, "Q4_1", 32, 20),
    (Q5_0, 6, "Q5_0", 32, 22),
    (Q5_1, 7, "Q5_1", 32, 24),
    (Q8_0, 8, "Q8_0", 32, 34),
    (Q2K, 10, "Q2_K", 256, 84),
    (Q3K, 11, "Q3_K", 256, 110),
    (Q4K, 12, "Q4_K", 256, 144),
    (Q5K, 13, "Q5_K", 256, 176),
    (Q6K, 14, "Q6_K", 256, 210),
];

/// Formats that are not widened here, by their number in the file.
const OTHERS: [(u32, &str); 15] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl Kind {
    /// The format of this number; else its name.
    pub(super) fn of(number: u32) -> Result<Self, String> {
        let found = KINDS.iter().find(|kind| kind.1 == number);
        found.map(|kind| kind.0).ok_or_else(|| {
            let other = OTHERS.iter().find(|other| other.0 == number);
            other.map_or_else(|| number.to_string(), |other| other.1.to_owned())
        })
    }

    pub(super) fn name(self) -> &'static str {
        KINDS[self as usize].2
    }

    /// Numbers of a block, and its bytes.
    pub(super) fn block(self) -> (usize, usize) {
        let (.., numbers, bytes) = KINDS[self as usize];
        (numbers, bytes)
    }

    /// Whether its numbers were rounded to fewer than 16 bits.
    pub(super) fn is_quantised(self) -> bool {
        self.block().0 > 1
    }

    pub(super) fn known() -> String {
        KINDS.map(|kind| kind.2).join(", ")
    }

    /// Adds the numbers of whole blocks to `out`.
    pub(super) fn widen(self, bytes: &[u8], out: &mut Vec<f32>) {
        for b in bytes.chunks_exact(self.block().1) {
            match self {
                F32 => out.push(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                F16 => out.push(half(b, 0)),
                Bf16 => out.push(f32::from_bits(
                    u32::from(b[0]) << 16 | u32::from(b[1]) << 24,
                )),
                Q4_0 => nibbles(&b[2..], 0, |q| half(b, 0) * (q - 8.0), out),
                Q4_1 => nibbles(&b[4..], 0, |q| half(b, 0) * q + half(b, 2), out),
                Q5_0 => nibbles(&b[6..], word(b, 2), |q| half(b, 0) * (q - 16.0), out),
                Q5_1 => nibbles(&b[8..], word(b, 4), |q| half(b, 0) * q + half(b, 2), out),
                Q8_0 => out.extend(b[2..].iter().map(|&q| f32::from(q as i8) * half(b, 0))),
                Q2K => q2_k(b, out),
                Q3K => q3_k(b, out),
                Q4K => q45_k(b, None, &b[16..], out),
                Q5K => q45_k(b, Some(&b[16..48]), &b[48..], out),
                Q6K => q6_k(b, out),
            }
        }
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Thirty-two numbers of four bits, the lower halves of 16 bytes first, with a fifth bit each.
fn nibbles(bytes: &[u8], fifth: u32, number: impl Fn(f32) -> f32, out: &mut Vec<f32>) {
    let low = bytes.iter().map(|q| q & 15);
    let all = low.chain(bytes.iter().map(|q| q >> 4));
    let with = |(at, q): (usize, u8)| number(f32::from(q | ((fifth >> at) as u8 & 1) << 4));
    out.extend(all.enumerate().map(with));
}

/// Of a block of 256: number `at` in fields of `bits`, of which each 32 bytes hold `8 / bits` times 32.
fn field(bytes: &[u8], bits: usize, at: usize) -> u8 {
    let group = 256 / bits;
    let byte = bytes[at / group * 32 + at % 32];
    byte >> (at % group / 32 * bits) & ((1u16 << bits) - 1) as u8
}

fn q2_k(b: &[u8], out: &mut Vec<f32>) {
    let (d, least) = (half(b, 80), half(b, 82));
    out.extend((0..256).map(|at| {
        let scale = b[at / 16];
        let (d, least) = (d * f32::from(scale & 15), least * f32::from(scale >> 4));
        d * f32::from(field(&b[16..80], 2, at)) - least
    }));
}

fn q3_k(b: &[u8], out: &mut Vec<f32>) {
    let (scales, d) = (&b[96..108], half(b, 108));
    out.extend((0..256).map(|at| {
        let of = at / 16;
        let low = scales[of % 8] >> (of / 8 * 4) & 15;
        let high = scales[8 + of % 4] >> (of / 4 * 2) & 3;
        let scale = f32::from((low | high << 4) as i8 - 32);
        // A bit that is set means that nothing is taken away.
        let taken = (field(&b[..32], 1, at) ^ 1) << 2;
        d * scale * f32::from(field(&b[32..96], 2, at) as i8 - taken as i8)
    }));
}

/// `fifth`: the upper bits of Q5_K.
fn q45_k(b: &[u8], fifth: Option<&[u8]>, low: &[u8], out: &mut Vec<f32>) {
    let (d, least, packed) = (half(b, 0), half(b, 2), &b[4..16]);
    for of in 0..8 {
        let (scale, lowest) = match of {
            0..4 => (packed[of] & 63, packed[of + 4] & 63),
            _ => (
                packed[of + 4] & 15 | packed[of - 4] >> 2 & 48,
                packed[of + 4] >> 4 | packed[of] >> 2 & 48,
            ),
        };
        let (d, least) = (d * f32::from(scale), least * f32::from(lowest));
        out.extend((of * 32..of * 32 + 32).map(|at| {
            let fifth = fifth.map_or(0, |bits| field(bits, 1, at));
            d * f32::from(field(low, 4, at) | fifth << 4) - least
        }));
    }
}

fn q6_k(b: &[u8], out: &mut Vec<f32>) {
    let d = half(b, 208);
    out.extend((0..256).map(|at| {
        // The lower four bits lie in two runs of 64 bytes.
        let low = b[at / 128 * 64 + at % 64] >> (at % 128 / 64 * 4) & 15;
        let number = (low | field(&b[128..192], 2, at) << 4) as i8 - 32;
        d * f32::from(b[192 + at / 16] as i8) * f32::from(number)
    }));
}
