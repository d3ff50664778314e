"""npm `ioredis` and npm `redis` with default settings, against a node on 7711: connect, a job's way, a blocked
GETJOB, pipelines, errors, MONITOR, reconnection.

`python -m tests.by_hand.ioredis_client` needs node, npm and ports 7711-7713 free; prints the counts.
"""

from __future__ import annotations

import sys

from tests.by_hand.foreign import cluster, npm_install, run

SESSION = r"""
const assert = require('assert')
const Redis = require('ioredis')
let passed = 0, failed = 0
async function check (name, act) {
  try { await act(); passed++; console.log('ok', name) } catch (error) { failed++; console.log('FAILED', name, error) }
}
async function main () {
  const one = new Redis(7711), two = new Redis(7712)
  await check('connects and pings', async () => assert.equal(await one.ping(), 'PONG'))
  await check('a job goes from node to node', async () => {
    const id = await one.call('ADDJOB', 'q', 'body', 5000)
    assert.match(id, /^D-/)
    const jobs = await two.call('GETJOB', 'TIMEOUT', 10000, 'FROM', 'q')
    assert.deepEqual(jobs, [['q', id, 'body']])
    assert.equal(await two.call('ACKJOB', id), 1)
  })
  await check('a blocked GETJOB gets a job', async () => {
    const waiting = two.call('GETJOB', 'FROM', 'late')
    const id = await one.call('ADDJOB', 'late', 'x', 5000)
    assert.deepEqual(await waiting, [['late', id, 'x']])
  })
  await check('a pipeline of ADDJOBs is answered in order', async () => {
    const pipeline = one.pipeline()
    for (let n = 0; n < 50; n++) pipeline.call('ADDJOB', 'p', String(n), 5000)
    pipeline.call('QLEN', 'p')
    const replies = await pipeline.exec()
    assert.ok(replies.slice(0, 50).every(([error, id]) => !error && id.startsWith('D-')))
    assert.deepEqual(replies[50], [null, 50])
  })
  await check('errors are errors', async () => {
    await assert.rejects(one.call('ADDJOB', 'q'), /wrong number of arguments for 'addjob' command/)
    await assert.rejects(one.call('WORKING', 'x'), /BADID/)
  })
  await check('INFO, CONFIG, CLIENT, COMMAND', async () => {
    assert.match(await one.info(), /disque_version:1.0-rc1/)
    assert.deepEqual(await one.config('GET', 'port'), ['port', '7711'])
    assert.match(await one.client('LIST'), /cmd=client/)
    assert.equal(await one.call('COMMAND', 'COUNT') >= 37, true)
  })
  await check('MONITOR', async () => {
    const monitor = await new Redis(7711).monitor()
    const seen = new Promise(resolve => monitor.on('monitor', (time, words) => {
      if (words[0].toLowerCase() === 'qlen') resolve(words)
    }))
    await one.call('QLEN', 'monitored')
    assert.deepEqual((await seen).slice(1), ['monitored'])
    monitor.disconnect()
  })
  await check('comes back after its connection was killed', async () => {
    const id = await one.client('ID')
    await two.ping()
    const other = new Redis(7711)
    await other.client('KILL', 'ID', id)
    assert.equal(await one.ping(), 'PONG')
    other.disconnect()
  })
  await check('binary bodies', async () => {
    const body = Buffer.from([0, 13, 10, 255, 36])
    await one.call('ADDJOB', 'b', body, 5000)
    const jobs = await one.callBuffer('GETJOB', 'FROM', 'b')
    assert.ok(body.equals(jobs[0][2]))
  })
  one.disconnect(); two.disconnect()
  const { createClient } = require('redis')
  await check('npm redis: connects, a job, RESP3', async () => {
    for (const RESP of [2, 3]) {
      const client = await createClient({ url: 'redis://localhost:7711', RESP }).connect()
      const id = await client.sendCommand(['ADDJOB', 'n', 'x', '5000'])
      assert.deepEqual(await client.sendCommand(['GETJOB', 'FROM', 'n']), [['n', id, 'x']])
      assert.equal(await client.sendCommand(['ACKJOB', id]), 1)
      await client.quit()
    }
  })
  console.log(`${passed} passed, ${failed} failed`)
  process.exit(failed ? 1 : 0)
}
main()
"""


def main() -> int:
    """Run the session."""
    with cluster(3) as (folder, _):
        target = npm_install(folder, "ioredis", "redis")
        (target / "session.js").write_text(SESSION)
        return run("node", "session.js", folder=target)


if __name__ == "__main__":
    sys.exit(main())
