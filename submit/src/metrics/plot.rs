//! A plot in text: success rates over iterations with the horizon below, to show at the end of a
//! run whether it learned.

/// One curve.
#[derive(Debug, Clone)]
pub struct Series {
    /// The character of its points.
    pub mark: char,
    /// Its name in the legend.
    pub label: String,
    /// (iteration, share between 0 and 1), sorted.
    pub points: Vec<(u32, f64)>,
}

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the curves over iterations 0 to `last`; later curves are drawn over earlier ones.
/// Iterations in the same column are averaged.
pub fn plot(series: &[Series], horizon: &[(u32, u32)], last: u32, size: (usize, usize)) -> String {
    let (columns, rows) = (size.0.max(10), size.1.max(3));
    let column = |iteration: u32| {
        (f64::from(iteration) / f64::from(last.max(1)) * (columns - 1) as f64).round() as usize
    };
    let mut grid = vec![vec![' '; columns]; rows];
    for curve in series {
        for (x, value) in binned(&curve.points, column, columns) {
            let up = (value.clamp(0.0, 1.0) * (rows - 1) as f64).round() as usize;
            grid[rows - 1 - up][x] = curve.mark;
        }
    }
    let mut out = String::new();
    let legend: Vec<_> = series
        .iter()
        .filter(|s| !s.points.is_empty())
        .map(|s| format!("{} {}", s.mark, s.label))
        .collect();
    out += &format!("{:>7}  {}\n", "success", legend.join("   "));
    for (row, line) in grid.iter().enumerate() {
        let share = 1.0 - row as f64 / (rows - 1) as f64;
        let text: String = line.iter().collect();
        out += format!("{share:>7.2} ┤{text}").trim_end();
        out.push('\n');
    }
    out += &format!("        └{}\n", "─".repeat(columns));
    out += &axis(last, columns);
    out += &strip(horizon, column, columns);
    out
}

/// The mean of the points that fall into each column.
fn binned(
    points: &[(u32, f64)],
    column: impl Fn(u32) -> usize,
    columns: usize,
) -> impl Iterator<Item = (usize, f64)> {
    let mut sums = vec![(0.0, 0u32); columns];
    for &(iteration, value) in points.iter().filter(|(_, v)| v.is_finite()) {
        let cell = &mut sums[column(iteration).min(columns - 1)];
        *cell = (cell.0 + value, cell.1 + 1);
    }
    sums.into_iter()
        .enumerate()
        .filter(|(_, (_, count))| *count > 0)
        .map(|(x, (sum, count))| (x, sum / f64::from(count)))
}

fn axis(last: u32, columns: usize) -> String {
    let middle = (last / 2).to_string();
    let end = last.to_string();
    let mut line = vec![' '; columns];
    let mut write = |at: usize, text: &str| {
        for (i, c) in text.chars().enumerate().take(columns.saturating_sub(at)) {
            line[at + i] = c;
        }
    };
    write(0, "0");
    if last > 1 {
        write((columns - 1) / 2, &middle);
    }
    write(columns - end.len().min(columns), &end);
    format!(
        "         {}  iteration\n",
        line.iter().collect::<String>().trim_end()
    )
}

fn strip(horizon: &[(u32, u32)], column: impl Fn(u32) -> usize, columns: usize) -> String {
    let (Some(least), Some(most)) = (
        horizon.iter().map(|h| h.1).min(),
        horizon.iter().map(|h| h.1).max(),
    ) else {
        return String::new();
    };
    let points: Vec<_> = horizon.iter().map(|&(i, r)| (i, f64::from(r))).collect();
    let mut line = vec![' '; columns];
    let mut before = None;
    let mut cells = binned(&points, column, columns).peekable();
    for (x, cell) in line.iter_mut().enumerate() {
        // A column between two iterations shows the earlier one's horizon.
        if let Some((_, value)) = cells.next_if(|(at, _)| *at == x) {
            before = Some(value);
        }
        if let Some(value) = before {
            let share = (value - f64::from(least)) / f64::from((most - least).max(1));
            let level = if least == most { 0.5 } else { share };
            *cell = LEVELS[(level * (LEVELS.len() - 1) as f64).round() as usize];
        }
    }
    let range = if least == most {
        format!("{least} rounds")
    } else {
        format!("{least} to {most} rounds")
    };
    format!(
        "{:>7}  {}  {range}\n",
        "horizon",
        line.iter().collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rising_run() {
        let train = Series {
            mark: '•',
            label: "training".into(),
            points: (1..=20).map(|i| (i, f64::from(i) / 25.0)).collect(),
        };
        let held_out = Series {
            mark: '◆',
            label: "held out".into(),
            points: vec![(0, 0.1), (10, 0.5), (20, 1.0)],
        };
        let horizon: Vec<_> = (1..=20).map(|i| (i, if i <= 10 { 4 } else { 8 })).collect();
        insta::assert_snapshot!(plot(&[train, held_out], &horizon, 20, (41, 6)), @"
            success  • training   ◆ held out
               1.00 ┤                                        ◆
               0.80 ┤                                    • • •
               0.60 ┤                    ◆     • • • • •
               0.40 ┤                • • • • •
               0.20 ┤◆     • • • • •
               0.00 ┤  • •
                    └─────────────────────────────────────────
                     0                   10                 20  iteration
            horizon    ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁███████████████████  4 to 8 rounds
        ");
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_without_a_panic() {
        let empty = plot(&[], &[], 0, (1, 1));
        assert!(empty.contains("1.00"), "{empty}");
        let wild = Series {
            mark: 'x',
            label: "wild".into(),
            points: vec![(0, f64::NAN), (1, -3.0), (900, 7.0)],
        };
        let text = plot(&[wild], &[(1, 5)], 900, (30, 4));
        assert_eq!(
            text.matches('x').count(),
            3,
            "legend and two points:\n{text}"
        );
    }

    #[test]
    fn many_iterations_share_columns() {
        let curve = Series {
            mark: '•',
            label: "training".into(),
            points: (1..=300).map(|i| (i, f64::from(i % 2))).collect(),
        };
        let text = plot(&[curve], &[], 300, (20, 5));
        let middle = text.lines().nth(3).unwrap();
        assert!(
            middle.matches('•').count() > 15,
            "means lie near one half:\n{text}"
        );
    }
}
