//! HTML document around the content.

use super::text::escape;

/// Content security policy: the browser fetches nothing, whatever the content is.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

pub fn wrap(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>{body}</main>\n\
         <div id=\"tip\" hidden></div>\n<script>\n{}</script>\n</body>\n</html>\n",
        escape(title),
        include_str!("page.css"),
        include_str!("page.js")
    )
}
