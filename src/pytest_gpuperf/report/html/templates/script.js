'use strict';
// Sorts, filters, groups, finds, links and copies what the page holds; it fetches nothing.
(() => {
  const one = (query, place = document) => place.querySelector(query);
  const list = one('#tests'), none = one('#none'), shown = one('#shown');
  const query = one('#q'), sort = one('#sort'), group = one('#group');
  const tests = [...list.querySelectorAll('.t')];
  const boxes = [...document.querySelectorAll('.chips input')];
  const heads = [...document.querySelectorAll('.thead button')];
  const status = new Map(tests.map(test => [test, test.className.match(/\bv-([a-z]+)/)[1]]));
  const texts = new Map();
  let isReversed = false;

  document.documentElement.classList.add('js');
  for (const id of ['tools', 'keys']) one('#' + id).hidden = false;

  // a large page puts closed panels aside before it moves rows: Chromium takes 8 us a node
  const aside = new Map();
  function putAside() {
    if (!list.classList.contains('big')) return;
    for (const test of tests) {
      const panel = test.open ? null : one('.panel', test);
      if (!panel) continue;
      textOf(test);
      aside.set(test, panel);
      panel.remove();
    }
  }
  function putBack(test) {
    if (aside.has(test)) test.append(aside.get(test));
    aside.delete(test);
  }

  // finding and filtering
  const textOf = test => {
    if (!texts.has(test)) texts.set(test, (test.dataset.name + ' ' + test.textContent).toLowerCase());
    return texts.get(test);
  };
  const hiddenStatuses = () => new Set(boxes.filter(box => !box.checked).map(box => box.id.slice(2)));
  function filter() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hidden = hiddenStatuses();
    let count = 0;
    for (const test of tests) {
      const fits = !hidden.has(status.get(test)) && words.every(word => textOf(test).includes(word));
      if (test.hidden === fits) test.hidden = !fits;
      count += fits;
    }
    none.hidden = count > 0;
    shown.textContent = count === tests.length ? '' : `${count} of ${tests.length} shown`;
    for (const head of list.querySelectorAll('.head-row')) {
      let next = head.nextElementSibling;
      while (next && next.hidden && next.matches('.t')) next = next.nextElementSibling;
      head.hidden = !next || !next.matches('.t');
    }
    remember();
  }

  // sorting and grouping; what has no value comes last, whichever way
  const keys = {
    order: test => +test.dataset.order,
    name: test => test.dataset.name,
    effect: test => !test.dataset.effect ? null : -Math.log1p(+test.dataset.effect),
    value: test => !test.dataset.value ? null : -test.dataset.value,
  };
  const groups = {
    file: test => test.dataset.name.split('::')[0],
    group: test => test.dataset.group || 'no group',
    status: test => status.get(test),
  };
  function arrange() {
    const key = keys[sort.value], way = isReversed ? -1 : 1;
    const pairs = tests.map(test => [key(test), test]);
    pairs.sort(([a, first], [b, second]) => {
      if ((a === null) !== (b === null)) return a === null ? 1 : -1;
      if (a !== b && a !== null) return (a < b ? -1 : 1) * way;
      return first.dataset.order - second.dataset.order;
    });
    putAside();
    for (const head of list.querySelectorAll('.head-row')) head.remove();
    const parts = new Map();
    for (const [, test] of pairs) {
      const name = groups[group.value] ? groups[group.value](test) : '';
      if (!parts.has(name)) parts.set(name, []);
      parts.get(name).push(test);
    }
    for (const [name, members] of parts) {
      if (group.value) list.append(heading(name, members.length));
      for (const test of members) list.append(test);
    }
    list.append(none);
    for (const head of heads) head.setAttribute('aria-pressed', String(head.dataset.sort === sort.value));
    filter();
  }
  function heading(name, count) {
    const head = document.createElement('h2'), number = document.createElement('span');
    head.className = 'head-row';
    number.className = 'soft';
    number.textContent = ` ${count}`;
    head.append(name, number);
    return head;
  }

  // the address holds what is seen, so that a view can be sent: #t-1a2b or #q=gemm&sort=name
  function remember() {
    const view = new URLSearchParams(), hidden = hiddenStatuses();
    if (query.value) view.set('q', query.value);
    if (sort.value !== 'order') view.set('sort', sort.value);
    if (isReversed) view.set('down', '1');
    if (group.value) view.set('group', group.value);
    if (hidden.size) view.set('off', [...hidden].join('.'));
    const text = view.toString();
    if (text || !location.hash.startsWith('#t-')) {
      history.replaceState(null, '', text ? '#' + text : location.pathname + location.search);
    }
  }
  function open(id) {
    const test = document.getElementById(id);
    if (!test || !test.matches('.t')) return;
    test.hidden = false;
    putBack(test);
    test.open = true;
    test.scrollIntoView();
    const row = one('summary', test);
    if (row) row.focus({preventScroll: true});
  }
  function restore() {
    const text = location.hash.slice(1);
    if (text.startsWith('t-')) return open(text);
    const view = new URLSearchParams(text);
    query.value = view.get('q') || '';
    sort.value = view.get('sort') || 'order';
    if (!sort.value) sort.value = 'order'; // a link of a page that sorts by more
    group.value = groups[view.get('group')] ? view.get('group') : '';
    isReversed = view.has('down');
    const hidden = (view.get('off') || '').split('.');
    for (const box of boxes) box.checked = !hidden.includes(box.id.slice(2));
    if (text) arrange();
  }

  // copying: buttons are made when a panel is opened, a thousand panels need none
  function arm(test) {
    for (const item of test.querySelectorAll('.cmd li')) {
      if (one('button', item)) return;
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = 'Copy';
      button.setAttribute('aria-label', 'Copy the command: ' + one('span', item).textContent);
      button.addEventListener('click', () => copy(button, one('code', item)));
      item.append(button);
    }
  }
  async function copy(button, code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand('copy');
    }
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  }

  // keys
  function step(way, isLoud) {
    const rows = [...list.querySelectorAll('.t')].filter(
      test => !test.hidden && test.matches('details') && (!isLoud || test.matches('.loud')));
    const now = rows.indexOf(document.activeElement.closest('.t'));
    const next = rows[Math.max(0, Math.min(rows.length - 1, now + way))];
    if (!next) return;
    one('summary', next).focus();
    next.scrollIntoView({block: 'nearest'});
  }
  const actions = {'/': () => query.focus(), j: () => step(1), k: () => step(-1), n: () => step(1, true)};
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === query) {
      if (event.key !== 'Escape') return;
      query.value = '';
      query.blur();
      return filter();
    }
    if (/^(SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const action = actions[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  let timer;
  query.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(filter, 60); });
  for (const control of [sort, group]) {
    control.addEventListener('change', () => { isReversed = false; arrange(); });
  }
  for (const head of heads) {
    head.addEventListener('click', () => {
      isReversed = sort.value === head.dataset.sort && !isReversed;
      sort.value = head.dataset.sort;
      arrange();
    });
  }
  for (const box of boxes) box.addEventListener('change', filter);
  one('#reset').addEventListener('click', () => {
    query.value = '';
    for (const box of boxes) box.checked = true;
    filter();
  });
  one('#all').addEventListener('click', event => {
    const isOpening = event.target.textContent === 'Open all';
    for (const test of tests) {
      if (test.hidden || !test.matches('details')) continue;
      if (isOpening) putBack(test);
      test.open = isOpening;
    }
    event.target.textContent = isOpening ? 'Close all' : 'Open all';
  });
  list.addEventListener('toggle', event => {
    if (!event.target.open) return;
    putBack(event.target);
    arm(event.target);
  }, true);
  addEventListener('beforeprint', () => { for (const test of [...aside.keys()]) putBack(test); });
  addEventListener('hashchange', restore);
  restore();
  performance.mark('gpuperf-ready');
})();
