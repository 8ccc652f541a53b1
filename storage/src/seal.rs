//! The digest of itself that a manifest carries. A manifest decides what is planned next (`inputs`,
//! `decision`) and whose results may be mixed (`numeric_class`), and nothing else in the store
//! repeats this information; so any changed byte has to be detected when it is read.
//!
//! The digest is the last field: BLAKE3 of the stored text as it would be without that field. It
//! covers the text and not the parsed value, so it remains valid with fields that a newer program
//! adds, and does not depend on how numbers are printed. It is not a signature: anyone who can
//! write to the store can also write a correctly sealed manifest.

use crate::Digest;
use bytes::Bytes;

/// The last bytes of the stored text of every record.
const END: &str = "\n}\n";
const FIELD: &str = ",\n  \"digest\": \"";
const DIGITS: usize = 64;

/// `text`, a JSON object as records are stored, with its digest as the last field.
pub(crate) fn seal(text: &[u8]) -> Bytes {
    let body = text
        .strip_suffix(END.as_bytes())
        .expect("records are stored as indented objects");
    let digest = Digest::of(text).to_string();
    [
        body,
        FIELD.as_bytes(),
        digest.as_bytes(),
        b"\"",
        END.as_bytes(),
    ]
    .concat()
    .into()
}

/// Checks a sealed text; the error is the reason it fails.
pub(crate) fn check(text: &[u8]) -> Result<(), String> {
    let Some((body, digits)) = split(text) else {
        return Err("its last field is not the digest of the others".to_owned());
    };
    let found = Digest::of(&[body, END.as_bytes()].concat()).to_string();
    if found.as_bytes() == digits {
        return Ok(());
    }
    let digits = String::from_utf8_lossy(digits);
    Err(format!(
        "it is not what was committed: its own digest is {}, that of its content {found}",
        digits.escape_debug()
    ))
}

/// Whether a text has the shape of a sealed one.
pub(crate) fn is_sealed(text: &[u8]) -> bool {
    split(text).is_some()
}

/// A sealed text without its last field and end, and the digits of that field.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let sealed = text.strip_suffix(END.as_bytes())?.strip_suffix(b"\"")?;
    let (head, digits) = sealed.split_at(sealed.len().checked_sub(DIGITS)?);
    Some((head.strip_suffix(FIELD.as_bytes())?, digits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"{\n  \"a\": 1\n}\n";

    #[test]
    fn a_sealed_text_ends_with_its_digest() {
        let digest = Digest::of(TEXT);
        let expected = format!("{{\n  \"a\": 1,\n  \"digest\": \"{digest}\"\n}}\n");
        assert_eq!(seal(TEXT), expected);
        assert_eq!(check(&seal(TEXT)), Ok(()));
    }

    proptest! {
        #[test]
        fn any_other_byte_is_seen(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let sealed = seal(TEXT);
            let mut other = sealed.to_vec();
            other[at.index(sealed.len())] ^= 1 << bit;
            prop_assert!(check(&other).is_err());
            prop_assert!(check(&sealed[..at.index(sealed.len())]).is_err());
        }
    }
}
