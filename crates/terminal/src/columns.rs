//! Output in aligned columns.

use std::fmt;

/// Rows of cells below a row of headings. The first column is a name and is aligned left; the others are
/// numbers and are aligned right.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Columns with these headings and no rows yet.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Columns { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()] }
    }

    /// Adds a row. A short row has empty cells at its end.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if column == 0 {
                    line += &format!("{cell:<width$}");
                } else {
                    line += &format!("  {cell:>width$}");
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_column_is_aligned_left_and_the_others_right() {
        let mut columns = Columns::new(&["device", "reads"]);
        columns.row(["a.img".to_owned(), "7".to_owned()]);
        columns.row(["long-name.img".to_owned(), "1,234,567".to_owned()]);
        let expected = "device             reads\na.img                  7\nlong-name.img  1,234,567\n";
        assert_eq!(columns.to_string(), expected);
    }
}
