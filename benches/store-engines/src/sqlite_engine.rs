//! SQLite in WAL mode with synchronous=FULL, incremental auto-vacuum.
use crate::Write;
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;
use std::sync::Mutex;

pub struct Engine {
    write: Mutex<Connection>,
    read: Mutex<Connection>,
}

impl Engine {
    pub fn open(path: &Path) -> Self {
        let open = || {
            let c = Connection::open(path).unwrap();
            c.execute_batch("PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-4096;").unwrap();
            c
        };
        let write = open();
        write.execute_batch("CREATE TABLE records(revision INTEGER PRIMARY KEY, key TEXT NOT NULL, created INTEGER, value BLOB NOT NULL);
            CREATE UNIQUE INDEX by_key ON records(key, revision, created);").unwrap();
        Engine { read: Mutex::new(open()), write: Mutex::new(write) }
    }
    pub fn commit(&self, batch: &[Write]) {
        let mut c = self.write.lock().unwrap();
        let txn = c.transaction().unwrap();
        {
            let mut last = txn
                .prepare_cached(
                    "SELECT created FROM records WHERE key=?1 ORDER BY revision DESC LIMIT 1",
                )
                .unwrap();
            let mut insert = txn.prepare_cached("INSERT INTO records VALUES(?1,?2,?3,?4)").unwrap();
            for w in batch {
                let created: Option<i64> =
                    last.query_row([&w.key], |r| r.get(0)).optional().unwrap();
                insert
                    .execute(params![
                        w.revision as i64,
                        w.key,
                        created.unwrap_or(w.revision as i64),
                        w.value
                    ])
                    .unwrap();
            }
        }
        txn.commit().unwrap();
    }
    pub fn list(&self, prefix: &str, limit: usize) -> usize {
        let c = self.read.lock().unwrap();
        let mut end = prefix.to_string();
        end.push('\u{10ffff}');
        let mut q = c.prepare_cached("SELECT r.value FROM (SELECT key, max(revision) AS revision FROM records WHERE key>=?1 AND key<?2 GROUP BY key ORDER BY key LIMIT ?3) m JOIN records r ON r.revision=m.revision").unwrap();
        let rows: Vec<Vec<u8>> = q
            .query_map(params![prefix, end, limit as i64], |r| r.get(0))
            .unwrap()
            .map(|r| r.unwrap())
            .collect();
        rows.len()
    }
    pub fn drop_history(&self, below: u64) -> usize {
        self.write.lock().unwrap().execute("DELETE FROM records WHERE revision<?1 AND EXISTS(SELECT 1 FROM records n WHERE n.key=records.key AND n.revision>records.revision)", [below as i64]).unwrap()
    }
    pub fn give_back(&mut self) {
        let c = self.write.lock().unwrap();
        let mut q = c.prepare("PRAGMA incremental_vacuum").unwrap();
        let mut rows = q.query([]).unwrap();
        while rows.next().unwrap().is_some() {}
        drop(rows);
        let _: i64 = c.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get(0)).unwrap();
    }
}
