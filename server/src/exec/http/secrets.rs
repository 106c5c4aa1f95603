//! Secrets of the node: looked up when a call is made, kept for as long as it lasts, shown to nobody.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use punctual::job::spec::SECRET_VARIABLE;
use tokio::io::AsyncReadExt;

/// The longest secret; a file that is larger is something else.
const MAX_BYTES: u64 = 16 << 10;
/// What stands in its place.
const HIDDEN: &[u8] = b"***";

/// A secret. Not shown, not written, not compared.
pub(super) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Secret {
    /// To be put into a header.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

/// The environment of the node.
pub(super) type Environment = dyn Fn(&str) -> Option<OsString> + Send + Sync;

/// Where a secret is looked for.
fn variables(name: &str) -> (String, String) {
    let variable = format!("{SECRET_VARIABLE}{name}");
    let file = format!("{variable}_FILE");
    (variable, file)
}

/// Why the node does not have the secret, as far as can be told without a look at a file.
pub(super) fn missing(name: &str, environment: &Environment) -> Option<String> {
    let (variable, file) = variables(name);
    match (environment(&variable), environment(&file)) {
        (None, None) => Some(format!(
            "this node has no secret {name}: start it with {variable}, or with {file} that names a file"
        )),
        (Some(_), Some(_)) => Some(format!(
            "the secret {name}: {variable} and {file} are both set, and one of them is enough"
        )),
        _ => None,
    }
}

/// The secret of this name: `PUNCTUAL_SECRET_NAME`, or what is in the file that
/// `PUNCTUAL_SECRET_NAME_FILE` names, read anew each time.
pub(super) async fn find(name: &str, environment: &Environment) -> Result<Secret, String> {
    if let Some(why) = missing(name, environment) {
        return Err(why);
    }
    let (variable, file) = variables(name);
    let (from, text) = match environment(&variable) {
        Some(value) => (variable, value.into_string().ok()),
        None => {
            let path = environment(&file).unwrap_or_default();
            let text = read(Path::new(&path)).await;
            let text = text.map_err(|error| format!("the secret {name}, {file}: {error}"))?;
            (file, text)
        }
    };
    let fail = |why: &str| Err(format!("the secret {name}, {from}: {why}"));
    match text {
        None => fail("it is not text"),
        Some(text) if text.is_empty() => fail("it is empty"),
        Some(text) if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
            fail("it has a line break or another character that no header can have")
        }
        Some(text) => Ok(Secret(text)),
    }
}

async fn read(path: &Path) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let file = tokio::fs::File::open(path).await?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(std::io::Error::other("it is larger than a secret can be"));
    }
    let text = String::from_utf8(bytes).ok();
    // Editors and `echo` end a file with a newline.
    Ok(text.map(|text| text.trim_end_matches(['\n', '\r']).to_owned()))
}

/// How a receiver may write a secret that it repeats: as it is, and as JSON, whose writers differ in
/// what they escape beyond what they must.
fn spellings(secret: &str) -> Vec<String> {
    let json = serde_json::Value::from(secret).to_string();
    let json = json[1..json.len() - 1].to_owned();
    let html = |upper: bool| {
        let escaped = |c: char| {
            let code = u32::from(c);
            match (c, upper) {
                ('<' | '>' | '&' | '\'', false) => format!("\\u{code:04x}"),
                ('<' | '>' | '&' | '\'', true) => format!("\\u{code:04X}"),
                _ => c.to_string(),
            }
        };
        json.chars().map(escaped).collect::<String>()
    };
    let mut all = vec![secret.to_owned()];
    for text in [json.clone(), html(false), html(true)] {
        all.push(text.replace('/', "\\/"));
        all.push(text);
    }
    all
}

/// The same bytes without the secrets, as they are or as JSON writes them. Where the bytes are not
/// `whole`, their end may be the beginning of one.
pub(super) fn hide(mut bytes: Vec<u8>, secrets: &[Secret], whole: bool) -> Vec<u8> {
    let spelled = secrets.iter().flat_map(|Secret(text)| spellings(text));
    let mut spelled: Vec<String> = spelled.collect();
    // One may be a part of another one.
    spelled.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    spelled.dedup();
    if !whole {
        let begun = spelled
            .iter()
            .flat_map(|text| (1..text.len()).map(|end| &text.as_bytes()[..end]))
            .filter(|begun| bytes.ends_with(begun))
            .map(<[u8]>::len)
            .max();
        bytes.truncate(bytes.len() - begun.unwrap_or(0));
    }
    for text in &spelled {
        bytes = replace(&bytes, text.as_bytes());
    }
    bytes
}

fn replace(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(secret.len()).position(|part| part == secret) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(HIDDEN);
        rest = &rest[at + secret.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(set: &[(&str, &str)]) -> Box<Environment> {
        let set: Vec<(String, OsString)> = set
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).into()))
            .collect();
        Box::new(move |name| {
            let found = set.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        })
    }

    async fn found(set: &[(&str, &str)]) -> Result<String, String> {
        let found = find("A", &*environment(set)).await;
        found.map(|secret| secret.expose().to_owned())
    }

    #[tokio::test]
    async fn a_secret_is_in_a_variable_or_in_a_file_and_one_that_is_not_is_told_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let file = path.to_str().unwrap();
        assert_eq!(
            found(&[("PUNCTUAL_SECRET_A", "hunter2")]).await,
            Ok("hunter2".into())
        );
        std::fs::write(&path, "hunter 3\r\n").unwrap();
        let in_file = [("PUNCTUAL_SECRET_A_FILE", file)];
        assert_eq!(found(&in_file).await, Ok("hunter 3".into()));
        // A new one counts from the next call on.
        std::fs::write(&path, "hunter4").unwrap();
        assert_eq!(found(&in_file).await, Ok("hunter4".into()));
        let large = "hunter2".repeat(4_096);
        for content in [
            "",
            "\n",
            "hunter2\nhunter2",
            "hunter2\0",
            "hunter2\u{e4}",
            &large,
        ] {
            std::fs::write(&path, content).unwrap();
            let why = found(&in_file).await.unwrap_err();
            assert!(
                why.contains("PUNCTUAL_SECRET_A_FILE") && !why.contains("hunter"),
                "{why}"
            );
        }
        for set in [
            &[][..],
            &[("PUNCTUAL_SECRET_B", "hunter2")],
            &[("PUNCTUAL_SECRET_A", "")],
            &[("PUNCTUAL_SECRET_A_FILE", "/nowhere/at/all")],
            &[
                ("PUNCTUAL_SECRET_A", "hunter2"),
                ("PUNCTUAL_SECRET_A_FILE", file),
            ],
        ] {
            let why = found(set).await.unwrap_err();
            assert!(
                why.contains("PUNCTUAL_SECRET_A") && !why.contains("hunter"),
                "{why}"
            );
        }
    }

    #[test]
    fn what_is_kept_has_no_secret_in_it() {
        let secrets = ["hunter2", "hunter2-long", "a\"b\\c"].map(|text| Secret(text.into()));
        assert_eq!(format!("{secrets:?}"), "[***, ***, ***]");
        let hidden = |text: &str, whole| {
            String::from_utf8(hide(text.as_bytes().to_vec(), &secrets, whole)).unwrap()
        };
        assert_eq!(
            hidden("hunter2 xhunter2hunter2-long hunter", true),
            "*** x****** hunter"
        );
        assert_eq!(
            hidden(r#"a"b\c {"t": "a\"b\\c"}"#, true),
            r#"*** {"t": "***"}"#
        );
        // As PHP and Go write JSON.
        let odd = [Secret("s3cr/et<tok&en".into())];
        for told in [
            "s3cr/et<tok&en",
            r"s3cr\/et<tok&en",
            r"s3cr/et\u003ctok\u0026en",
            r"s3cr\/et\u003Ctok\u0026en",
        ] {
            let told = told.as_bytes().to_vec();
            assert_eq!(hide(told, &odd, true), b"***");
        }
        assert_eq!(hidden("", false), "");
        assert_eq!(hidden("said: hunter", false), "said: ");
        assert_eq!(hidden("said: hunter2-lo", false), "said: ");
        assert_eq!(hidden("said: other", false), "said: other");
    }
}
