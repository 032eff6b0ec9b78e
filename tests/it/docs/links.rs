//! Links of the documents: files and headings that exist, and an index with every page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::{documents, pages, read, root};

const INDEX: &str = "docs/SUMMARY.md";

/// Returns the lines of a document that are not in a code block.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the targets of the links of a document.
fn targets(text: &str) -> Vec<&str> {
    prose(text)
        .flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()))
        .filter(|target| !target.contains("://"))
        .collect()
}

/// Returns the anchors of the headings of a document, as GitHub and mdBook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::new();
    let headings = prose(text).filter_map(|line| {
        let title = line.trim_start_matches('#');
        (title.len() < line.len()).then_some(title).and_then(|title| title.strip_prefix(' '))
    });
    headings
        .map(|title| {
            let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            let anchor: String =
                kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
            let count = seen.entry(anchor.clone()).and_modify(|count| *count += 1).or_insert(0);
            if *count == 0 { anchor } else { format!("{anchor}-{count}") }
        })
        .collect()
}

/// Returns the path without `..`, relative to the root.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::ParentDir => assert!(normal.pop(), "{} leaves the repository", path.display()),
            other => normal.push(other),
        }
        normal
    })
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    for document in documents() {
        let text = read(&document);
        let folder = Path::new(&document).parent().expect("a folder");
        for target in targets(&text) {
            let (file, anchor) =
                target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            let linked = if file.is_empty() { PathBuf::from(&document) } else { normal(&folder.join(file)) };
            assert!(root().join(&linked).exists(), "{document} links to {target}, which does not exist");
            if let Some(anchor) = anchor {
                let headings = anchors(&read(linked.to_str().expect("a path in UTF-8")));
                assert!(
                    headings.contains(anchor),
                    "{document} links to {target}; the headings are {headings:#?}"
                );
            }
        }
    }
}

#[test]
fn the_index_has_every_page_once() {
    let index = read(INDEX);
    let mut listed: Vec<String> = targets(&index)
        .into_iter()
        .filter(|target| !target.starts_with("../"))
        .map(|target| format!("docs/{target}"))
        .collect();
    listed.sort();
    let expected: Vec<String> = pages().into_iter().filter(|page| page != INDEX).collect();
    assert_eq!(listed, expected, "{INDEX} does not have every page of docs once");
}

#[test]
fn anchors_are_those_of_rendered_pages() {
    let text = "# A page\n\n## `berth explain`: why?\n```sh\n# no heading\n```\n### Limits\n## Limits\n#### on C++, Go & Rust\n";
    let expected = ["a-page", "berth-explain-why", "limits", "limits-1", "on-c-go--rust"];
    assert_eq!(anchors(text), expected.into_iter().map(str::to_owned).collect());
}
