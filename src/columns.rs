//! Text tables with aligned columns.

/// Text between columns.
pub const GAP: &str = "  ";

/// Returns the width of each column, in characters. All rows have the same number of cells.
pub fn widths<S: AsRef<str>>(rows: &[impl AsRef<[S]>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |at: usize| rows.iter().map(|row| row.as_ref()[at].as_ref().chars().count()).max();
    (0..columns).filter_map(width).collect()
}

/// Pads the cells of a row to these widths; columns that are not in `left` are right-aligned.
pub fn padded<S: AsRef<str>>(row: &[S], widths: &[usize], left: &[usize]) -> Vec<String> {
    let cell = |(at, (cell, &width)): (usize, (&S, &usize))| match left.contains(&at) {
        true => format!("{:<width$}", cell.as_ref()),
        false => format!("{:>width$}", cell.as_ref()),
    };
    row.iter().zip(widths).enumerate().map(cell).collect()
}

/// Formats a line per row, without trailing spaces.
pub fn table<S: AsRef<str>>(rows: &[impl AsRef<[S]>], widths: &[usize], left: &[usize]) -> String {
    let line = |row: &_| format!("{}\n", padded(AsRef::as_ref(row), widths, left).join(GAP).trim_end());
    rows.iter().map(line).collect()
}
