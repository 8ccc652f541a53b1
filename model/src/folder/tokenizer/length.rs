//! A lower bound on the number of ids of a text, from its length.
//!
//! A server may send 30 MB where the context holds a few thousand ids. Encoding that takes
//! minutes, and hundreds of bytes of memory per byte of text, only to find that it does not fit.
//!
//! A tokenizer that works on bytes puts every byte of its (normalised) text into exactly
//! one token, so that n bytes have at least n / (bytes of the longest token) ids. Other
//! kinds drop characters, or make one id of any unknown word; they have no such bound.

use tokenizers::{
    ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
};
use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

/// Bytes by which canonical composition across the two ends of an added token can make
/// a text longer than its pieces composed one by one: a character and the marks that
/// compose with it, generously.
const SEAMS: usize = 16;

/// How much text one id of a tokenizer can represent.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdLength {
    /// Most bytes of normalised text.
    bytes_max: usize,
    /// Text is composed (NFC) before it is encoded.
    composes: bool,
}

impl IdLength {
    /// `None` where the tokenizer does not take every byte into exactly one token.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let composes = composes(tokenizer.get_normalizer())?;
        let ModelWrapper::BPE(model) = tokenizer.get_model() else {
            return None;
        };
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        let vocab = model.get_vocab();
        let spells_all = byte_letters().all(|letter| {
            let mut buffer = [0; 4];
            vocab.contains_key(&*letter.encode_utf8(&mut buffer))
        });
        let plain = affixes
            .iter()
            .all(|affix| affix.as_deref().unwrap_or("").is_empty());
        if !spells_all || !plain || !works_on_bytes(tokenizer.get_pre_tokenizer()?) {
            return None;
        }
        // Every letter of a token stands for a byte; added tokens are matched literally.
        let own = vocab.keys().map(|token| token.chars().count()).max();
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        // Such a token absorbs any number of adjacent spaces.
        if added.values().any(|token| token.lstrip || token.rstrip) {
            return None;
        }
        let added = added.values().map(|token| token.content.len()).max();
        let bytes_max = own.max(added)? + if composes { SEAMS } else { 0 };
        Some(IdLength {
            bytes_max,
            composes,
        })
    }

    /// A lower bound on the ids of these texts, concatenated.
    pub(super) fn ids_min<'a>(&self, texts: impl Iterator<Item = &'a str> + Clone) -> usize {
        let whole = || texts.clone().flat_map(str::chars);
        let as_it_is = !self.composes || is_nfc_quick(whole()) == IsNormalized::Yes;
        let bytes: usize = match as_it_is {
            true => texts.map(str::len).sum(),
            false => whole().nfc().map(char::len_utf8).sum(),
        };
        bytes.div_ceil(self.bytes_max)
    }

    /// Any ASCII text of this many bytes has more than `ids` ids.
    pub(super) fn bytes_above(&self, ids: usize) -> usize {
        ids.saturating_add(1).saturating_mul(self.bytes_max)
    }
}

/// Whether text is composed (NFC); `None` for a normalizer that may drop something.
fn composes(normalizer: Option<&NormalizerWrapper>) -> Option<bool> {
    match normalizer {
        None => Some(false),
        Some(NormalizerWrapper::NFC(_)) => Some(true),
        Some(NormalizerWrapper::Sequence(all)) => {
            let each: Option<Vec<bool>> =
                (all.as_ref().iter()).map(|n| composes(Some(n))).collect();
            Some(each?.contains(&true))
        }
        Some(_) => None,
    }
}

/// Whether it maps bytes to letters and drops nothing.
fn works_on_bytes(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    let keeps_all = |step: &PreTokenizerWrapper| match step {
        PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Digits(_) => true,
        PreTokenizerWrapper::Split(split) => split.behavior != SplitDelimiterBehavior::Removed,
        _ => false,
    };
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(steps) => {
            let steps = steps.as_ref();
            let last = steps.last();
            steps.iter().all(keeps_all)
                && last.is_some_and(|step| matches!(step, PreTokenizerWrapper::ByteLevel(_)))
        }
        _ => false,
    }
}

/// The 256 letters that GPT-2's byte level writes for bytes: printable Latin-1 as it is,
/// the others from U+0100 on (`bytes_to_unicode` of github.com/openai/gpt-2, encoder.py).
fn byte_letters() -> impl Iterator<Item = char> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..256).filter(move |byte| !printable(byte)).count() as u32;
    (0..256)
        .filter(printable)
        .chain(0x100..0x100 + others)
        .filter_map(char::from_u32)
}
