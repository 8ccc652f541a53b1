//! How numbers and tables look to people, the same in every command.

use std::io::Write as _;

/// Writes results to standard output. A reader that went away (`… | head`)
/// ends the output, not the program with a panic.
pub fn emit(text: &str) {
    let mut out = std::io::stdout().lock();
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    // The only failure here is a closed pipe, which is the reader's choice.
    let _ = write!(out, "{text}{newline}").and_then(|()| out.flush());
}

/// Prints a JSON document to standard output.
pub fn emit_json(value: &serde_json::Value) {
    emit(&format!("{value:#}"));
}

/// Aligned columns: numbers to the right, words to the left.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let numeric = |cell: &String| {
        cell.starts_with(['-', '+', '–', '·']) || cell.starts_with(|c: char| c.is_ascii_digit())
    };
    let right: Vec<bool> = (0..head.len())
        .map(|column| column > 0 && rows.iter().filter_map(|row| row.get(column)).all(numeric))
        .collect();
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
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
    for row in rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}

/// `1.5 GB`: powers of ten, as disks and buckets are sold.
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

/// A share or a reward to three places, `–` where there is none.
pub fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{v:.3}"))
}

/// The first line of a message, cut to `limit` characters.
pub fn one_line(text: &str, limit: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= limit {
        return line.to_owned();
    }
    let cut: String = line.chars().take(limit.saturating_sub(1)).collect();
    format!("{cut}…")
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
        assert_eq!(seconds(200.0), "3 min 20 s");
        assert_eq!(seconds(7500.0), "2 h 05 min");
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
}
