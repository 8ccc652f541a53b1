//! Our own recipe table, compiled in: everyday crafts of a village, with goals of depth 1 to 4.

use super::book::{BookBuilder, RawInput, RecipeBook};

/// One recipe per line: `<count> <output> [<tag>] = <count> <input>, <count> #<tag>`. Empty lines
/// and lines that start with `--` are skipped.
const TABLE: &str = include_str!("../../data/recipes.txt");

impl RecipeBook {
    /// The table that ships with the program. Goals of equal depth are ordered by name.
    pub fn builtin() -> Self {
        let mut lines: Vec<(&str, &str)> = TABLE
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with("--"))
            .map(|line| (output_name(line), line))
            .collect();
        lines.sort_by_key(|(output, _)| *output);
        let mut builder = BookBuilder::default();
        for (output, line) in lines {
            add(&mut builder, output, line)
                .expect("every line of the compiled-in table is a recipe");
        }
        builder.finish()
    }
}

fn output_name(line: &str) -> &str {
    let left = line.split('=').next().unwrap_or_default();
    let name = left.split('[').next().unwrap_or_default().trim();
    name.split_once(' ').map_or(name, |(_, name)| name)
}

fn add(builder: &mut BookBuilder, output: &str, line: &str) -> Option<()> {
    let (left, right) = line.split_once('=')?;
    let (count, _) = left.trim().split_once(' ')?;
    let group = left
        .split_once('[')
        .and_then(|(_, tag)| tag.split_once(']'))
        .map(|(tag, _)| identifier(tag));
    let inputs: Option<Vec<RawInput>> = right
        .split(',')
        .map(|piece| {
            let (count, name) = piece.trim().split_once(' ')?;
            let (name, is_tag) = name
                .strip_prefix('#')
                .map_or((name, false), |tag| (tag, true));
            Some((identifier(name), is_tag, count.parse().ok()?))
        })
        .collect();
    builder.add(
        &identifier(output),
        count.parse().ok()?,
        &inputs?,
        group.as_deref(),
    );
    Some(())
}

fn identifier(name: &str) -> String {
    name.trim().replace(' ', "_")
}
