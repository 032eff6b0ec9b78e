//! Free text in a page: escaped, and cut to the available width.

/// Font size of text in plots, in units of their view box.
pub const FONT: f64 = 12.0;

/// Escapes text for element content and quoted attributes. Characters that HTML does not allow become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(char),
            _ if char.is_control() => out.push('\u{fffd}'),
            _ => out.push(char),
        }
    }
    out
}

/// Estimates the width of text in a plot. The font is unknown; system fonts are usually narrower.
pub fn width(text: &str) -> f64 {
    text.chars().map(|char| if char.is_ascii() { 0.58 * FONT } else { FONT }).sum()
}

/// Returns the beginning of a text that fits, with an ellipsis if it was cut.
pub fn cut(text: &str, room: f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut left = room - FONT;
    let fits = |char: &char| {
        left -= width(char.encode_utf8(&mut [0; 4]));
        left >= 0.0
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_can_end_an_attribute_or_a_tag() {
        assert_eq!(escape("<b a=\"1\" c='2'>&\0"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\u{fffd}");
    }

    #[test]
    fn long_names_are_cut_to_their_room() {
        assert_eq!(cut("protean", 100.0), "protean");
        let long = cut(&"é".repeat(200), 100.0);
        assert!(long.ends_with('…') && width(&long) <= 100.0 && long.chars().count() > 5, "{long}");
    }
}
