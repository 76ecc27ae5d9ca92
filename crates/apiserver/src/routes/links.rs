//! Links in HTML pages that come through a proxy: those that lead to the page's own host are changed
//! to lead through this server, as upstream's proxy changes them. Pages are changed as they pass.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use longshore_serving::BoxError;

/// A tag that is longer than this stays as it is.
const MAX_TAG: usize = 64 << 10;

/// Elements whose text is not markup.
const RAW: [&str; 4] = ["script", "style", "textarea", "title"];

/// Attributes with links, by element.
const ATTRIBUTES: [(&str, &[&str]); 28] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("track", &["src"]),
    ("video", &["poster", "src"]),
    ("image", &["href"]),
    ("use", &["href"]),
];

/// A page that passes, with what is left of it between two pieces.
pub(super) struct Links {
    /// Path of this server below which the page's host is.
    way: String,
    /// Host and port that the page is of.
    host: String,
    /// The start of a tag whose end has not come.
    rest: Vec<u8>,
    /// The end tag that ends text which is not markup, such as `</script`.
    raw_until: Option<String>,
}

/// The pieces of a page with its links changed.
pub(super) fn rewritten(
    mut links: Links,
    body: Incoming,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
    let pieces = BodyStream::new(body)
        .map(|frame| frame.map(|frame| Some(frame.into_data().unwrap_or_default())))
        .chain(futures::stream::once(async { Ok(None) }));
    pieces.map(move |piece| match piece {
        Ok(Some(piece)) => Ok(links.feed(&piece)),
        Ok(None) => Ok(links.finish()),
        Err(error) => Err(BoxError::from(error)),
    })
}

impl Links {
    pub(super) fn new(way: &str, host: &str) -> Links {
        Links { way: way.to_owned(), host: host.to_owned(), rest: Vec::new(), raw_until: None }
    }

    /// What can be passed on after this piece.
    fn feed(&mut self, piece: &[u8]) -> Bytes {
        let mut text = std::mem::take(&mut self.rest);
        text.extend_from_slice(piece);
        let mut out = Vec::with_capacity(text.len());
        let mut left = text.as_slice();
        while let Some(start) = left.iter().position(|byte| *byte == b'<') {
            let (before, tag) = left.split_at(start);
            out.extend_from_slice(before);
            let Some(end) = tag_end(tag) else {
                if tag.len() > MAX_TAG {
                    out.extend_from_slice(tag);
                } else {
                    self.rest = tag.to_vec();
                }
                return out.into();
            };
            let (tag, after) = tag.split_at(end);
            self.push_tag(tag, &mut out);
            left = after;
        }
        out.extend_from_slice(left);
        out.into()
    }

    fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.rest).into()
    }

    fn push_tag(&mut self, tag: &[u8], out: &mut Vec<u8>) {
        let Ok(text) = std::str::from_utf8(tag) else {
            return out.extend_from_slice(tag);
        };
        if let Some(end) = &self.raw_until {
            if text.to_ascii_lowercase().starts_with(end) {
                self.raw_until = None;
            }
            return out.extend_from_slice(tag);
        }
        let name: String = text
            .chars()
            .skip(1)
            .take_while(char::is_ascii_alphanumeric)
            .map(|letter| letter.to_ascii_lowercase())
            .collect();
        if RAW.contains(&name.as_str()) && !text.ends_with("/>") {
            self.raw_until = Some(format!("</{name}"));
        }
        match ATTRIBUTES.iter().find(|(element, _)| *element == name) {
            Some((_, attributes)) => {
                out.extend_from_slice(self.changed(text, attributes).as_bytes())
            }
            None => out.extend_from_slice(tag),
        }
    }

    /// The tag with the values of these attributes changed.
    fn changed(&self, tag: &str, attributes: &[&str]) -> String {
        let mut out = String::with_capacity(tag.len());
        let mut left = tag;
        while let Some(equals) = left.find('=') {
            let (before, rest) = left.split_at(equals.saturating_add(1));
            out.push_str(before);
            let name = before.trim_end_matches('=').trim_end();
            let name = name.rsplit(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '/'));
            let name = name.into_iter().next().unwrap_or_default().to_ascii_lowercase();
            let value = rest.trim_start();
            let blank = rest.len().saturating_sub(value.len());
            out.push_str(rest.get(..blank).unwrap_or_default());
            let (quote, value) = match value.chars().next() {
                Some(quote @ ('"' | '\'')) => (Some(quote), value.get(1..).unwrap_or_default()),
                _ => (None, value),
            };
            let end = match quote {
                Some(quote) => value.find(quote),
                None => value.find(|c: char| c.is_whitespace() || c == '>'),
            };
            let (value, after) = value.split_at(end.unwrap_or(value.len()));
            if let Some(quote) = quote {
                out.push(quote);
            }
            match attributes.contains(&name.as_str()) {
                true => out.push_str(&self.link(value)),
                false => out.push_str(value),
            }
            // The quote that ends the value goes with what follows, so that it is no value again.
            let quoted = usize::from(quote.is_some() && !after.is_empty());
            out.push_str(after.get(..quoted).unwrap_or_default());
            left = after.get(quoted..).unwrap_or_default();
        }
        out.push_str(left);
        out
    }

    /// Where a link leads by way of this server; relative ones and those to other hosts stay.
    fn link(&self, link: &str) -> String {
        let trimmed = link.trim();
        let own = ["http://", "https://", "//"].iter().find_map(|scheme| {
            let below = trimmed.strip_prefix(scheme)?.strip_prefix(&self.host)?;
            (below.is_empty() || below.starts_with('/')).then_some(below)
        });
        let is_rooted = trimmed.starts_with('/') && !trimmed.starts_with("//");
        let below = match own {
            Some(below) => below,
            None if is_rooted && !trimmed.starts_with(&self.way) => trimmed,
            None => return link.to_owned(),
        };
        format!("{}{below}", self.way)
    }
}

/// The length of the tag, declaration or comment that a text begins with, if its end is there.
fn tag_end(text: &[u8]) -> Option<usize> {
    if text.starts_with(b"<!--") {
        let end = text.windows(3).skip(4).position(|end| end == b"-->")?;
        return Some(end.saturating_add(7));
    }
    if b"<!--".starts_with(text) {
        return None;
    }
    if !text
        .get(1)
        .is_some_and(|next| next.is_ascii_alphabetic() || matches!(next, b'/' | b'!' | b'?'))
    {
        return Some(1);
    }
    let mut quote = None;
    for (i, byte) in text.iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(i.saturating_add(1)),
            (None, b'"' | b'\'') => quote = Some(*byte),
            (Some(open), byte) if open == *byte => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAY: &str = "/api/v1/namespaces/a/pods/b/proxy";

    fn page(text: &str, piece: usize) -> String {
        let mut links = Links::new(WAY, "10.0.0.1:80");
        let mut out = Vec::new();
        for piece in text.as_bytes().chunks(piece) {
            out.extend_from_slice(&links.feed(piece));
        }
        out.extend_from_slice(&links.finish());
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn proxy_links_of_pages_lead_through_the_server() {
        for (text, expected) in [
            (r#"<a href="/rewriteme">test</a>"#, format!(r#"<a href="{WAY}/rewriteme">test</a>"#)),
            ("<A HREF='/x'>", format!("<A HREF='{WAY}/x'>")),
            ("<a class=c href=/x>", format!("<a class=c href={WAY}/x>")),
            (
                "<img alt=\"a > b\" src=\"/i.png\"/>",
                format!("<img alt=\"a > b\" src=\"{WAY}/i.png\"/>"),
            ),
            ("<a href=\"http://10.0.0.1:80/y?z\">", format!("<a href=\"{WAY}/y?z\">")),
            ("<p title=\"/x\">5 < 6", "<p title=\"/x\">5 < 6".to_owned()),
            ("<a href=\"x/y\"><a href=\"//o/p\">", "<a href=\"x/y\"><a href=\"//o/p\">".to_owned()),
            ("<a href=\"https://o.example/p\">", "<a href=\"https://o.example/p\">".to_owned()),
            (
                "<!-- <a href=\"/x\"> --><a href=/y>",
                format!("<!-- <a href=\"/x\"> --><a href={WAY}/y>"),
            ),
            (
                "<script>var a = '<a href=\"/x\">';</script><a href=\"/z\">",
                format!("<script>var a = '<a href=\"/x\">';</script><a href=\"{WAY}/z\">"),
            ),
            ("plain text", "plain text".to_owned()),
            ("<a href=\"/x", "<a href=\"/x".to_owned()),
        ] {
            for piece in [1, 3, 7, 1000] {
                assert_eq!(page(text, piece), expected, "{text} in pieces of {piece}");
            }
        }
        let twice = format!("<a href=\"{WAY}/x\">");
        assert_eq!(page(&twice, 1000), twice, "what leads through the server already");
    }

    proptest::proptest! {
        #[test]
        fn proxy_pages_keep_their_text(text in "[<>a-z=\"'/! -]{0,60}", piece in 1_usize..9) {
            let changed = page(&text, piece);
            let without = changed.replace(WAY, "");
            proptest::prop_assert_eq!(without, text);
        }
    }
}
