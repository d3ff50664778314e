"""npm `thunk-disque`: a session of what its own tests (not in the package) do, against three nodes on 7711-7713.

`python -m tests.by_hand.thunk_disque_client` needs node, npm and the ports free; prints the counts.
"""

from __future__ import annotations

import sys

from tests.by_hand.foreign import cluster, npm_install, run

SESSION = r"""
const assert = require('assert')
const disque = require('thunk-disque')
let passed = 0, failed = 0
async function check (name, act) {
  try { await act(); passed++; console.log('ok', name) } catch (error) { failed++; console.log('FAILED', name, error) }
}
async function main () {
  const client = disque.createClient([7711, 7712, 7713], { usePromise: true })
  await check('info is an object with its fields', async () => {
    const info = await client.info()
    assert.equal(info.disque_version, '1.0-rc1')
    assert.ok('registered_jobs' in info && 'used_memory' in info)
  })
  await check('command lists more than 30 in the six-field form', async () => {
    const list = await client.command()
    assert.ok(list.length > 30)
    assert.ok(list.every(entry => entry.length === 6 && Array.isArray(entry[2])))
    assert.equal(await client.command('count'), list.length)
    assert.equal((await client.command('info', 'addjob'))[0][0], 'addjob')
  })
  await check('hello, time, config get', async () => {
    const hello = await client.hello()
    assert.equal(hello.length, 5)
    assert.equal((await client.time()).length, 2)
    await client.config('get', '*')
  })
  await check('requirepass, auth and unset on one connection', async () => {
    const one = disque.createClient(7713, { usePromise: true })
    await one.config('set', 'requirepass', '123456')
    await assert.rejects(one.info(), error => error.code === 'NOAUTH' || /NOAUTH/.test(String(error)))
    assert.equal(await one.auth('123456'), 'OK')
    await one.config('set', 'requirepass', '')
    await one.info()
    await one.clientEnd()
  })
  await check('addjob with options in lower case, getjob, ackjob', async () => {
    const id = await client.addjob('t', 'body', 0, 'retry', 10, 'ttl', 100, 'replicate', 2)
    assert.match(id, /^D-/)
    const jobs = await client.getjob('nohang', 'withcounters', 'from', 't')
    assert.ok(JSON.stringify(jobs).includes(id))
    assert.equal(await client.ackjob(id), 1)
  })
  await check('getjob from nothing, error codes', async () => {
    const jobs = await client.getjob('nohang', 'from', 'nothing')
    assert.ok(jobs === null || jobs.length === 0)
    await assert.rejects(client.show('x'), error => error.code === 'BADID' || /BADID/.test(String(error)))
    await assert.rejects(client.addjob('t'), error => /wrong number/.test(String(error)))
  })
  await check('show is an object, qlen, qpeek, qstat, enqueue, dequeue, nack, working, deljob', async () => {
    const id = await client.addjob('s', 'x', 0)
    const shown = await client.show(id)
    assert.equal(shown.id, id)
    assert.equal(await client.qlen('s'), 1)
    assert.equal((await client.qpeek('s', 1)).length, 1)
    assert.equal((await client.qstat('s')).name, 's')
    assert.equal(await client.dequeue(id), 1)
    assert.equal(await client.enqueue(id), 1)
    await client.getjob('from', 's')
    assert.equal(await client.working(id), 300)
    assert.equal(await client.nack(id), 1)
    assert.equal(await client.deljob(id), 1)
  })
  await check('qscan and jscan', async () => {
    const id = await client.addjob('scanned', 'x', 0)
    const [cursor, queues] = await client.qscan('busyloop', 'minlen', 1)
    assert.equal(String(cursor), '0')
    assert.ok(queues.includes('scanned'))
    assert.ok((await client.jscan(0, 'queue', 'scanned'))[1].includes(id))
  })
  await check('200 jobs at once', async () => {
    const ids = await Promise.all(Array.from({ length: 200 }, (_, n) => client.addjob('many', String(n), 0)))
    assert.equal(new Set(ids).size, 200)
    assert.equal(await client.fastack(...ids), 200)
  })
  await client.clientEnd()
  console.log(`${passed} passed, ${failed} failed`)
  process.exit(failed ? 1 : 0)
}
main()
"""


def main() -> int:
    """Run the session."""
    with cluster(3) as (folder, _):
        target = npm_install(folder, "thunk-disque")
        (target / "session.js").write_text(SESSION)
        return run("node", "session.js", folder=target)


if __name__ == "__main__":
    sys.exit(main())
