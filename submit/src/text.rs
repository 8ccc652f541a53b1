//! Text form of numbers and tables, the same in every command.

use crate::documents::{laid_out, versioned};
use crate::{Error, Result};
use agentgym_text::{visible, visible_name};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::sync::OnceLock;

/// Writes results to standard output. If the reader has closed the pipe (`… | head`), output ends
/// without a panic. On a terminal, long lines break between columns. Control characters are made
/// visible.
pub fn emit(text: &str) {
    write_out(&folded(&visible(text), &console::Term::stdout()));
}

/// Writes a line to standard error, made visible and broken like [`emit`]; failures to write are
/// ignored.
pub fn tell(line: &str) {
    tell_whole(&folded(&visible(line), &console::Term::stderr()));
}

/// [`tell`] without breaks: a document stays on one line.
pub fn tell_whole(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", visible(line));
}

/// Text as a terminal of this width shows it best; unchanged where there is none.
pub fn folded(text: &str, terminal: &console::Term) -> String {
    match terminal.size_checked() {
        Some((_, columns)) => fit(text, usize::from(columns)),
        None => text.to_owned(),
    }
}

fn write_out(text: &str) {
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    emit_bytes(format!("{}{newline}", visible(text)).as_bytes());
}

/// Why standard output could not be written, the first time.
static UNWRITTEN: OnceLock<std::io::Error> = OnceLock::new();

/// Writes bytes to standard output as they are.
pub(crate) fn emit_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(bytes).and_then(|()| out.flush()) {
        // Only the first one counts.
        let _ = UNWRITTEN.set(e);
    }
}

/// Whether all that was emitted was written. A reader that has closed the pipe has seen enough.
///
/// # Errors
/// The first failure.
pub fn emitted() -> Result<()> {
    match UNWRITTEN.get() {
        Some(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::Output(e.to_string())),
        _ => Ok(()),
    }
}

/// Prints a JSON document to standard output, with its version. Control characters are written as
/// JSON escapes, so the value is the same.
pub fn emit_json(document: &impl Serialize) {
    write_out(&laid_out(&versioned(document)));
}

/// [`emit_json`] on one line.
pub fn emit_json_line(document: &impl Serialize) {
    write_out(&versioned(document).to_string());
}

/// Breaks lines longer than `width`: between columns (two spaces) if possible, else between words.
/// Continuation lines are indented to the second column.
pub fn fit(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if console::measure_text_width(line) <= width {
            out += line;
        } else {
            out += &fit_line(line, width);
        }
        out.push('\n');
    }
    if !text.ends_with('\n') {
        out.pop();
    }
    out
}

fn fit_line(line: &str, width: usize) -> String {
    const DEEPER: usize = 4;
    let chars: Vec<char> = line.chars().collect();
    let leading = chars.iter().take_while(|c| **c == ' ').count();
    // The second column starts after the first run of two or more spaces.
    let gap = chars[leading..].windows(2).position(|w| w == [' ', ' ']);
    let second = gap.map(|at| {
        let from = leading + at;
        from + chars[from..].iter().take_while(|c| **c == ' ').count()
    });
    let columns = |at: usize| console::measure_text_width(&chars[..at].iter().collect::<String>());
    let indent = second
        .map(columns)
        .filter(|at| *at <= width / 2)
        .unwrap_or(leading + DEEPER);
    let whole = commands(line);
    let mut out = String::new();
    let mut rest = &chars[..];
    let mut room = width;
    while let Some(limit) = beyond(rest, room) {
        let head = &rest[..=limit];
        let from = chars.len() - rest.len();
        let breaks = |at: usize| rest[at] == ' ' && !whole.iter().any(|w| w.contains(&(from + at)));
        // A break at a column must leave the line at least half full.
        let half = beyond(rest, room / 2).unwrap_or(limit);
        let column = (half..head.len().saturating_sub(1)).rev().find(|at| {
            head[*at] == ' ' && (head[at + 1] == ' ' || (*at > 0 && head[at - 1] == ' '))
        });
        let word = (1..head.len())
            .rev()
            .find(|at| breaks(*at) && head[..*at].iter().any(|c| *c != ' '));
        // A word that is longer than a line has one for itself.
        let later = (limit..rest.len()).find(|at| breaks(*at));
        let Some(at) = column.or(word).or(later) else {
            break;
        };
        let line: String = rest[..at].iter().collect();
        out += line.trim_end();
        out.push('\n');
        out += &" ".repeat(indent);
        let skipped = rest[at..].iter().take_while(|c| **c == ' ').count();
        rest = &rest[at + skipped..];
        room = width.saturating_sub(indent).max(1);
    }
    out.extend(rest);
    out
}

/// The commands of a line, in characters: one that is broken cannot be copied. A command ends with its
/// backtick, at a column or with the line.
fn commands(line: &str) -> Vec<std::ops::Range<usize>> {
    let names = ["agentgym-submit ", "agentgym-worker ", "agentgym-env "];
    let begins = names.iter().flat_map(|name| line.match_indices(name));
    let command = |(at, _): (usize, &str)| {
        let length = line[at..]
            .find(['`', '\n'])
            .into_iter()
            .chain(line[at..].find("  "))
            .min();
        let from = line[..at].chars().count();
        let text = &line[at..at + length.unwrap_or(line.len() - at)];
        from..from + text.chars().count()
    };
    begins.map(command).collect()
}

/// Index of the first character that has no room; colours take none.
fn beyond(chars: &[char], room: usize) -> Option<usize> {
    let (mut used, mut in_colour) = (0, false);
    chars.iter().position(|&c| {
        let ends = in_colour && c.is_ascii_alphabetic();
        in_colour = c == '\u{1b}' || in_colour && !ends;
        if !in_colour && !ends {
            used += console::measure_text_width(c.encode_utf8(&mut [0; 4]));
        }
        used > room
    })
}

/// `wrote   FOLDER: metrics.jsonl, tensorboard/…`.
pub fn written(paths: &[std::path::PathBuf]) -> String {
    let Some(folder) = paths.first().and_then(|path| path.parent()) else {
        return String::new();
    };
    let names: Vec<String> = paths
        .iter()
        .map(|path| {
            path.strip_prefix(folder)
                .unwrap_or(path)
                .display()
                .to_string()
        })
        .collect();
    format!("wrote   {}: {}\n", folder.display(), names.join(", "))
}

/// Aligned columns: numbers right, words left.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let numeric = |cell: &String| {
        cell.starts_with(['-', '+', '–', '·']) || cell.starts_with(|c: char| c.is_ascii_digit())
    };
    let right: Vec<bool> = (0..head.len())
        .map(|column| column > 0 && rows.iter().filter_map(|row| row.get(column)).all(numeric))
        .collect();
    // Control characters are made visible, so a cell is always one line.
    let rows: Vec<Vec<String>> = (rows.iter())
        .map(|row| row.iter().map(|cell| visible_name(cell)).collect())
        .collect();
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut out = String::from(" ");
        for (index, (cell, &width)) in cells.zip(&widths).enumerate() {
            out += if index == 0 { " " } else { "  " };
            out += &if right[index] {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    };
    let mut out = line(&mut head.iter().copied());
    for row in &rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}

/// `1.5 GB`: decimal units, as for disks and buckets.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ if value < 10.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// The bytes of a size such as `500MB`: units as `transformers` reads them, MB a million bytes and
/// MiB 2^20.
///
/// # Errors
/// What a size looks like.
pub(crate) fn bytes_of(size: &str) -> Result<usize, String> {
    const UNITS: [(&str, u64); 7] = [
        ("KIB", 1 << 10),
        ("MIB", 1 << 20),
        ("GIB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let upper = size.trim().to_ascii_uppercase();
    let split = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((upper.strip_suffix(unit)?, *bytes)));
    let (number, unit) = split.unwrap_or((&upper, 1));
    let number = number.trim();
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let bytes = digits.then(|| number.parse::<u64>().ok()?.checked_mul(unit));
    let bytes = bytes
        .flatten()
        .and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        format!("{size:?} is no size of a file; give a whole number and a unit, such as 500MB, 4GB or 2GiB")
    })
}

/// A word of a command line, quoted for a shell if needed.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/:.-_=@%+,".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// `12 345 678`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `1 epoch`, `2 epochs`, `3 minibatches`.
pub fn many(value: u64, noun: &str) -> String {
    let plural = match value {
        1 => "",
        _ if noun.ends_with("ch") && !noun.ends_with("och") => "es",
        _ => "s",
    };
    format!("{} {noun}{plural}", count(value))
}

/// `0.8 s`, `42 s`, `3 min 20 s`, `2 h 05 min`.
pub fn seconds(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.1} s");
    }
    let whole = value.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// What so many seconds cost at the price of an hour.
pub(crate) fn cost(hourly: f64, seconds: f64) -> f64 {
    const HOUR_S: f64 = 3600.0;
    hourly * seconds / HOUR_S
}

/// What an hour of a worker costs, as it is typed.
///
/// # Errors
/// What a price looks like.
pub fn price(text: &str) -> Result<f64, String> {
    let price: Option<f64> = text.parse().ok();
    let price = price.filter(|price| (0.0..=1e6).contains(price));
    price.ok_or_else(|| "give the price of an hour as a number from 0 to 1000000, e.g. 2.10".into())
}

/// A share or a reward with three decimals, `–` if there is none.
pub fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{v:.3}"))
}

/// The first line of a message, cut to `limit` characters.
pub fn one_line(text: &str, limit: usize) -> String {
    let line = visible(text.lines().next().unwrap_or_default());
    if line.chars().count() <= limit {
        return line.into_owned();
    }
    let cut: String = line.chars().take(limit.saturating_sub(1)).collect();
    format!("{cut}…")
}

/// For showing ages to people; no decision uses it.
pub(crate) fn unix_now_s() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// Replaces a file atomically: readers see the old or the new content.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(Error::local(dir))?;
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(Error::local(dir))?;
    std::io::Write::write_all(&mut file, content).map_err(Error::local(path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o644);
        file.as_file()
            .set_permissions(mode)
            .map_err(Error::local(path))?;
    }
    file.persist(path)
        .map_err(|e| Error::local(path)(e.error))?;
    Ok(())
}

/// The same value without negative zeros, which empty sums produce.
pub(crate) fn plain_zeros(value: Value) -> Value {
    match value {
        Value::Array(all) => all.into_iter().map(plain_zeros).collect(),
        Value::Object(all) => {
            let all = all.into_iter();
            Value::Object(
                all.map(|(name, value)| (name, plain_zeros(value)))
                    .collect(),
            )
        }
        Value::Number(number) if number.is_f64() && number.as_f64() == Some(0.0) => json!(0.0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_234_567), "1.2 MB");
        assert_eq!(bytes(999_600), "1.0 MB");
        assert_eq!(bytes(107_000_000_000), "107 GB");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(count(12), "12");
        assert_eq!(many(1, "epoch"), "1 epoch");
        assert_eq!(many(2, "epoch"), "2 epochs");
        assert_eq!(many(0, "minibatch"), "0 minibatches");
        assert_eq!(seconds(200.0), "3 min 20 s");
        assert_eq!(seconds(7500.0), "2 h 05 min");
    }

    #[test]
    fn a_command_is_never_broken() {
        let command = "agentgym-submit resume r --store /tmp/s 'guard.pause=[]'";
        for line in [
            format!("run r stopped. When the cause is gone: {command}"),
            format!("Fork from iteration 3: `{command}`, with what is to be different behind it"),
            format!("next    {command}  # and so on"),
        ] {
            let shown = fit(&line, 40);
            assert!(shown.contains(command), "{shown}");
            assert!(shown.lines().count() > 1);
        }
    }

    #[test]
    fn long_lines_break_between_columns() {
        let line = "evaluate    worlds d1 (20 tasks), worlds d2 (20 tasks), real d1 (29 tasks)";
        insta::assert_snapshot!(fit(line, 50), @r"
        evaluate    worlds d1 (20 tasks), worlds d2 (20
                    tasks), real d1 (29 tasks)
        ");
        let columns = "  pg_loss 0.1000  clip_fraction 0.0200  entropy 6.1559  grad_norm 0.2";
        insta::assert_snapshot!(fit(columns, 47), @r"
          pg_loss 0.1000  clip_fraction 0.0200
                          entropy 6.1559  grad_norm 0.2
        ");
        assert_eq!(
            fit("a unbreakable-and-long b", 9),
            "a\n    unbreakable-and-long\n    b"
        );
        let option = "  \u{1b}[1m-h\u{1b}[0m  one two";
        assert_eq!(fit(option, 12), "  \u{1b}[1m-h\u{1b}[0m  one\n      two");
        let coloured = "\u{1b}[1mone\u{1b}[0m two three";
        assert_eq!(fit(coloured, 7), "\u{1b}[1mone\u{1b}[0m two\n    three");
        let short = "a\nb  c\n";
        assert_eq!(fit(short, 5), short);
        assert_eq!(fit("unbreakable-and-long", 5), "unbreakable-and-long");
        for width in 1..90 {
            let text = fit(&format!("{line}\n{columns}"), width);
            let words = |t: &str| t.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(
                words(&text),
                words(&format!("{line}\n{columns}")),
                "{width}"
            );
            if width >= 40 {
                assert!(text.lines().all(|l| l.chars().count() <= width), "{text}");
            }
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["init".into(), "0.1".into()],
            vec!["iteration 10".into(), "0.25".into()],
        ];
        insta::assert_snapshot!(table(&["policy", "depth 1"], &rows), @"
            policy        depth 1
            init              0.1
            iteration 10     0.25
        ");
    }

    #[test]
    fn sizes_are_read_as_transformers_reads_them() {
        for (size, bytes) in [
            ("500MB", 500_000_000),
            ("2GiB", 2 << 30),
            ("3 kb", 3000),
            ("7", 7),
            ("1b", 1),
        ] {
            assert_eq!(bytes_of(size), Ok(bytes), "{size}");
        }
        for size in [
            "",
            "MB",
            "0",
            "0GB",
            "-1GB",
            "1.5GB",
            "500 apples",
            "99999999999GB",
            "+5MB",
        ] {
            let why = bytes_of(size).unwrap_err();
            assert!(why.contains("500MB"), "{size}: {why}");
        }
    }
}
