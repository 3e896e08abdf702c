// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

// The page: what watches the manager, and what is shown of it.

import { render } from "preact";

import { App } from "./app";
import { WatchContext } from "./context";
import { Store } from "./state";
import "./style/index.css";
import { applyTheme, keptTheme } from "./theme";
import { Watch } from "./watch";

const root = document.getElementById("console");
if (root) {
  applyTheme(keptTheme());
  const watch = new Watch(new Store(), window.fetch.bind(window), sessionStorage);
  const show = () =>
    render(
      <WatchContext.Provider value={watch}>
        <App />
      </WatchContext.Provider>,
      root,
    );
  void watch.resume().then(show, show);
}
