//! Makes foreign text safe to display, and removes secrets from addresses.
//!
//! Observations, server replies and worker names come from outside. A terminal
//! interprets some of their characters: it changes its title, erases lines, writes into
//! the clipboard, or displays words in a different order.

use std::borrow::Cow;
use std::io::Write;

use url::Url;

/// What to do about a server whose certificate's authority is unknown here.
pub const PRIVATE_AUTHORITY: &str = "if a private authority signed the server's certificate, name a file \
    with that authority's certificate in SSL_CERT_FILE";

/// The text with every character that a terminal would interpret written as a symbol: `␛`
/// for an escape, `\u202e` for one that has no symbol. Tab and line feed stay.
///
/// Text that is valid JSON stays valid JSON with the same meaning.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            _ if !is_obeyed(c) => shown.push(c),
            // U+2400 to U+241F are the pictures of U+0000 to U+001F.
            '\0'..='\x1f' => shown.extend(char::from_u32(0x2400 + c as u32)),
            _ => shown += &format!("\\u{:04x}", c as u32),
        }
    }
    Cow::Owned(shown)
}

/// [`visible`] on one line, for names, which may contain line feeds.
pub fn visible_name(text: &str) -> String {
    visible(text).replace('\n', "␊").replace('\t', "␉")
}

/// Control characters except tab and line feed, characters that change the direction of
/// writing (Unicode's Bidi_Control), and the separators of lines and paragraphs.
fn is_obeyed(c: char) -> bool {
    matches!(c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        || (c.is_control() && !matches!(c, '\t' | '\n'))
}

/// A writer for logs: [`visible`], but with colours.
pub struct Visible<W>(pub W);

impl<W: Write> Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut shown = String::with_capacity(text.len());
        let mut rest = &*text;
        // Colours come from the logger itself; escapes in logged values are already replaced.
        while let Some(start) = rest.find("\x1b[") {
            let (before, escape) = rest.split_at(start);
            shown += &visible(before);
            let end = 2 + escape[2..]
                .bytes()
                .take_while(|b| b.is_ascii_digit() || *b == b';')
                .count();
            let is_colour = escape[end..].starts_with('m');
            let (escape, after) = escape.split_at(if is_colour { end + 1 } else { 1 });
            match is_colour {
                true => shown += escape,
                false => shown += &visible(escape),
            }
            rest = after;
        }
        shown += &visible(rest);
        self.0.write_all(shown.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// An address that is safe to show and record: `***` instead of the user name, the
/// password, and options that carry either. Unchanged where there is none of these.
/// Several addresses may be separated by commas.
pub fn without_secrets(address: &str) -> String {
    let has_scheme = |piece: &str| piece.contains("://") || !piece.contains('@');
    if address.contains(',') && address.split(',').all(has_scheme) {
        let pieces: Vec<String> = address.split(',').map(one_without_secrets).collect();
        return pieces.join(",");
    }
    one_without_secrets(address)
}

/// Whether [`without_secrets`] leaves something out.
pub fn has_secrets(address: &str) -> bool {
    without_secrets(address) != address
}

fn one_without_secrets(address: &str) -> String {
    let trimmed = address.trim();
    // A built-in environment's options may follow its name directly.
    let spelled = match trimmed.strip_prefix("builtin?") {
        Some(options) => Cow::Owned(format!("builtin:?{options}")),
        None => Cow::Borrowed(trimmed),
    };
    let Ok(mut url) = Url::parse(&spelled) else {
        return spelled_wrong(address);
    };
    let is_path = matches!(url.scheme(), "file" | "sqlite" | "memory" | "builtin");
    let elsewhere = [url.path(), url.fragment().unwrap_or_default()];
    // `redis://:pa/ss@host`, `redis:secret@host`: a part of the password is parsed as a path.
    if !is_path && elsewhere.iter().any(|part| part.contains('@')) {
        return spelled_wrong(address);
    }
    let names_user = !url.username().is_empty() || url.password().is_some();
    let secret_option = |(name, value): &(Cow<'_, str>, Cow<'_, str>)| {
        is_secret_name(name) || (value.contains("://") && has_secrets(value))
    };
    if !names_user && !url.query_pairs().any(|option| secret_option(&option)) {
        return address.to_owned();
    }
    if names_user {
        // These fail only for addresses that cannot have a user, and this one has.
        let _ = url.set_password(None);
        let _ = url.set_username("***");
    }
    if url.query_pairs().any(|option| secret_option(&option)) {
        let options: Vec<String> = url
            .query_pairs()
            .map(|(name, value)| match is_secret_name(&name) {
                true => format!("{name}=***"),
                false => format!("{name}={}", without_secrets(&value)),
            })
            .collect();
        url.set_query(Some(&options.join("&")));
    }
    url.to_string()
}

/// For text that is no valid address: anything before an `@` or in an option may be secret.
fn spelled_wrong(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    let rest = match rest.rsplit_once('@') {
        Some((_, host)) => format!("***@{host}"),
        None => rest.to_owned(),
    };
    match rest.split_once('?') {
        Some((host, options)) if options.contains('=') => format!("{scheme}{host}?***"),
        _ => format!("{scheme}{rest}"),
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let parts = [
        "pass",
        "pwd",
        "pw",
        "secret",
        "token",
        "credential",
        "auth",
        "key",
        "user",
        "sig",
    ];
    parts.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_written_as_symbols() {
        for (text, shown) in [
            ("a\tb\n", "a\tb\n"),
            ("\x1b]52;c;cm0=\x07", "␛]52;c;cm0=␇"),
            ("\x1b]0;title\x1b\\", "␛]0;title␛\\"),
            ("done\r\x1b[2Kfake", "done␍␛[2Kfake"),
            ("\u{9b}2J\x7f", "\\u009b2J\\u007f"),
            (
                "gpj.\u{202e}exe\u{2066}\u{2028}\u{200f}",
                "gpj.\\u202eexe\\u2066\\u2028\\u200f",
            ),
            ("schön 中 👩‍🚀 ن", "schön 中 👩‍🚀 ن"),
        ] {
            assert_eq!(visible(text), shown);
            assert_eq!(visible(&visible(text)), shown);
        }
        assert_eq!(visible_name("w\n\tok\x1b"), "w␊␉ok␛");
        // JSON keeps its meaning.
        let value = serde_json::json!("\u{9b}\x1b\u{202e}\x7f é");
        let shown = visible(&value.to_string()).into_owned();
        assert!(!shown.chars().any(is_obeyed), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }

    #[test]
    fn a_log_keeps_its_colours_alone() {
        let mut out = Vec::new();
        let line = b"\x1b[32m INFO\x1b[0m \x1b[1;2mx\x1b[0m \x1b[2J\x1b]0;t\x07 \x1b\x1b[";
        Visible(&mut out).write_all(line).unwrap();
        let shown = String::from_utf8(out).unwrap();
        assert_eq!(
            shown,
            "\x1b[32m INFO\x1b[0m \x1b[1;2mx\x1b[0m ␛[2J␛]0;t␇ ␛␛["
        );
    }

    #[test]
    fn addresses_lose_what_is_secret_and_nothing_else() {
        for address in [
            "http://127.0.0.1:36001",
            "https://host/textcraft/",
            "http://a:1,http://b:2",
            "redis://host:6379/0",
            "sqlite:a@b.sqlite",
            "builtin:worlds?depths=1-2&lines=4-8",
            "builtin",
            "builtin?distractors=4",
            "s3://bucket/a?endpoint=http://127.0.0.1:9&region=eu-1",
            "./runs",
        ] {
            assert_eq!(without_secrets(address), address);
            assert!(!has_secrets(address));
        }
        for (address, shown) in [
            ("http://me:s3cret@host:1/x", "http://***@host:1/x"),
            ("http://s3cret@host", "http://***@host/"),
            (
                "http://a:1, http://u:s3cret@b:2",
                "http://a:1,http://***@b:2/",
            ),
            ("redis://:s3cret@host:1/2", "redis://***@host:1/2"),
            (
                "redis://host/?password=s3cret&db=1",
                "redis://host/?password=***&db=1",
            ),
            (
                "s3://b?endpoint=http://u:s3cret@h:9",
                "s3://b?endpoint=http://***@h:9/",
            ),
            (
                "s3://b?endpoint=http%3A%2F%2Fu%3As3cret%40h",
                "s3://b?endpoint=http://***@h/",
            ),
            (
                "s3://b/p?secret_access_key=s3cret",
                "s3://b/p?secret_access_key=***",
            ),
            ("http://u:s3/cret@h", "http://***@h"),
            ("http://u:12/s3cret@h", "http://***@h"),
            ("redis://:s3#cret@h", "redis://***@h"),
            ("http://u:s3,cret@h", "http://***@h/"),
            ("u:s3cret@:::", "***@:::"),
            ("redis:s3cret@host", "***@host"),
            ("htp//u:s3cret@host", "***@host"),
        ] {
            assert_eq!(without_secrets(address), shown);
            assert!(has_secrets(address), "{address}");
        }
    }
}
