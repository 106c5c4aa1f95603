//! The two recipes of `docs/exactly-once.md`, on SQLite: an effect that is kept by the id of its run,
//! and a cell that refuses whoever has been succeeded.

use std::path::Path;
use std::time::Duration;

use punctual::handler::FencingToken;
use rusqlite::{Connection, params};

/// What everything here can fail with.
pub(crate) type Answer<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS payment (
        run_id TEXT PRIMARY KEY,
        cents INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS report (
        name TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        text TEXT NOT NULL
    );";

/// The first recipe: one row a run, whichever of its attempts is first.
const PAY: &str = "
    INSERT INTO payment (run_id, cents) VALUES (?1, ?2)
    ON CONFLICT (run_id) DO NOTHING";

/// The second recipe: the row of whoever has the largest token so far.
const WRITE: &str = "
    INSERT INTO report (name, token, text) VALUES (?1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, text = excluded.text
    WHERE report.token <= excluded.token";

/// The same where the row is there already.
const REWRITE: &str = "
    UPDATE report SET token = ?2, text = ?3
    WHERE name = ?1 AND token <= ?2";

/// Opens the database of the effects. Each attempt has a connection of its own.
pub(crate) fn open(path: &Path) -> Answer<Connection> {
    let database = Connection::open(path)?;
    database.busy_timeout(Duration::from_secs(30))?;
    database.execute_batch(TABLES)?;
    Ok(database)
}

/// Pays for a run, unless another attempt of it has. Whether this one did; either way it is paid.
pub(crate) fn pay(database: &Connection, run: &str, cents: i64) -> Answer<bool> {
    Ok(database.execute(PAY, params![run, cents])? == 1)
}

/// Writes the report, unless an attempt with a larger token has. Whether it was written; if not, the
/// caller has been succeeded and should stop.
pub(crate) fn write(
    database: &Connection,
    name: &str,
    token: FencingToken,
    text: &str,
) -> Answer<bool> {
    Ok(database.execute(WRITE, params![name, signed(token)?, text])? == 1)
}

/// The same where the report is there already.
pub(crate) fn rewrite(
    database: &Connection,
    name: &str,
    token: FencingToken,
    text: &str,
) -> Answer<bool> {
    Ok(database.execute(REWRITE, params![name, signed(token)?, text])? == 1)
}

/// SQLite's integers are signed. A token reaches 2^63 after 128 restores.
fn signed(token: FencingToken) -> Answer<i64> {
    Ok(i64::try_from(token.0)?)
}

/// As a handler does it: to be refused ends the attempt.
pub(crate) fn or_stop(written: Answer<bool>) -> Answer<()> {
    match written? {
        true => Ok(()),
        false => Err("somebody newer writes this report".into()),
    }
}
