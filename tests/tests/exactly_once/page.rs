//! The page shows what is tested.

use std::fs;
use std::path::Path;

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Each statement on the page is one that the recipes execute, word for word.
#[test]
fn the_page_shows_the_statements_that_are_tested() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(here.join("../docs/exactly-once.md")).unwrap();
    let recipes = fs::read_to_string(here.join("examples/exactly_once/sink.rs")).unwrap();
    let recipes = recipes.replace("\";", " ").replace('"', " ");
    let recipes = words(&recipes);
    let blocks: Vec<&str> = page
        .split("```sql\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let block = words(block);
        let stands = recipes.windows(block.len()).any(|some| some == block);
        assert!(stands, "the recipes have no such statement: {block:?}");
    }
}
