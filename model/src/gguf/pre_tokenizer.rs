//! How text is split before it is merged into tokens, by the name in `tokenizer.ggml.pre`: as llama.cpp
//! splits it, and for `tekken` as Mistral does, whose classes of letters llama.cpp rewrites for want of
//! them. A name that is not here is refused: with another split, texts get other ids than the model learnt.

/// What a name stands for.
pub(super) struct Split {
    names: &'static [&'static str],
    /// One after the other, each on the pieces of the one before.
    pub(super) patterns: &'static [&'static str],
    /// A piece that is a token is not merged anew.
    pub(super) ignores_merges: bool,
    /// The model's own tokenizer composes characters first, which llama.cpp leaves out.
    pub(super) composes: bool,
    /// Whether texts begin with the first token where the file does not say.
    pub(super) begins: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

const PLAIN: Split = Split {
    names: &["gpt-2", "mpt", "olmo"],
    patterns: &[GPT2],
    ignores_merges: false,
    composes: false,
    begins: false,
};

const LLAMA3: Split = Split {
    names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
    patterns: &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    ignores_merges: true,
    begins: true,
    ..PLAIN
};

const SPLITS: [Split; 8] = [
    PLAIN,
    LLAMA3,
    Split {
        names: &["dbrx", "smaug-bpe"],
        ignores_merges: false,
        begins: false,
        ..LLAMA3
    },
    Split {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        patterns: &[r"\p{N}", GPT2],
        ..PLAIN
    },
    Split {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        composes: true,
        ..PLAIN
    },
    Split {
        names: &["tekken"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignores_merges: true,
        begins: true,
        ..PLAIN
    },
    Split {
        names: &["deepseek-coder"],
        patterns: &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}",
        ],
        ..PLAIN
    },
    Split {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        ..PLAIN
    },
];

impl Split {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        const ALL: &[Split] = &SPLITS;
        ALL.iter().find(|split| split.names.contains(&name))
    }

    /// Every name.
    pub(super) fn known() -> String {
        let names = SPLITS.iter().flat_map(|split| split.names).copied();
        names.collect::<Vec<_>>().join(", ")
    }
}
